// Records of a zone: which object holds them, and how one is added, changed and taken away.

import {h, fill} from "./dom.js";
import {ask as request, fault, get, homeNamespace, part} from "./api.js";
import {ask, failureBox, field, say, select} from "./ui.js";
import {changeLines, differences, isOurs, movedBox, objectPath, written} from "./changes.js";

const API_VERSION = "kudurru.io/v1alpha1";
const NAMES_TRIED = 9;
const OBJECT_NAME_MAX = 200;

// What data of a type looks like, one record a line.
const HINTS = {
  A: "IPv4 addresses: 192.0.2.1",
  AAAA: "IPv6 addresses: 2001:db8::1",
  CNAME: "One name, absolute: www.example.org. It stands alone at its name.",
  MX: "Preference and mail server: 10 mail.example.org",
  TXT: 'Text as it is, or in quotes as in a zone file: "v=spf1 -all"',
  SRV: "Priority, weight, port, host: 0 5 5060 sip.example.org",
  CAA: 'Flags, tag, value: 0 issue "letsencrypt.org"',
  NS: "Name servers of a part that others serve: ns1.example.net",
  PTR: "A name, absolute: host.example.org",
  HTTPS: 'Priority, target, parameters: 1 . alpn="h2,h3"',
  SVCB: 'Priority, target, parameters: 1 svc.example.org alpn="h2"',
  TLSA: "Usage, selector, matching type, data: 3 1 1 ab01…",
  SSHFP: "Algorithm, type, fingerprint: 4 2 ab01…",
  DS: "Key tag, algorithm, digest type, digest: 12345 13 2 ab01…",
  NAPTR: 'Order, preference, flags, service, regexp, replacement: 100 10 "u" "E2U+sip" "!^.*$!sip:a@b!" .',
};
const OTHER = "other…";

const bare = name => name.replace(/\.$/, "").toLowerCase();

/** Of a zone: a name as a person writes it there, "@" for the zone's own. */
export function relative(name, zoneName) {
  const [full, apex] = [name.replace(/\.$/, ""), bare(zoneName)];
  if (full.toLowerCase() === apex) return "@";
  const end = `.${apex}`;
  return apex && full.toLowerCase().endsWith(end) ? full.slice(0, -end.length) : full;
}

/** The other way: a final dot makes a name absolute. */
export function absolute(name, zoneName) {
  const text = name.trim(), apex = zoneName.replace(/\.$/, "");
  if (text === "" || text === "@") return apex || ".";
  if (text.endsWith(".")) return text.length > 1 ? text.slice(0, -1) : text;
  return apex ? `${text}.${apex}` : text;
}

/** Where the record set of a row is. */
export function placeOf(row) {
  const [namespace, name] = row.object.split("/");
  return {kind: "dnsrecordsets", namespace, name};
}

// --- the form --------------------------------------------------------------------------------

class RecordForm {
  constructor(zone, row) {
    this.zone = zone;
    const types = Object.keys(HINTS);
    const type = row?.recordType || "A";
    this.name = h("input", {type: "text", name: "name", spellcheck: "false", autocomplete: "off", placeholder: "@",
      value: row ? relative(row.dnsName, zone.spec.zoneName) : ""});
    this.type = select([...types, OTHER], types.includes(type) ? type : OTHER, {name: "type", onchange: () => this.hint()});
    this.other = h("input", {type: "text", name: "other", "aria-label": "Type", placeholder: "TYPE65280",
      value: types.includes(type) ? "" : type, hidden: types.includes(type)});
    this.targets = h("textarea", {name: "targets", rows: "3", class: "short", spellcheck: "false", value: (row?.targets || []).join("\n")});
    this.ttl = h("input", {type: "number", name: "ttl", min: "0", max: "2147483647", value: row?.recordTTL ?? "",
      placeholder: `${zone.spec.defaultTTL ?? 300}, the zone's`});
    this.isOff = h("input", {type: "checkbox", name: "disabled", checked: Boolean(row?.disabled)});
    this.expires = h("input", {type: "text", name: "expires", value: row?.expiresAt || "", placeholder: "2027-01-31T12:00:00Z"});
    this.namespace = h("input", {type: "text", name: "namespace", value: homeNamespace()});
    this.faults = new Map();
    this.element = h("div", {},
      h("div", {class: "pair"}, this.row("dnsName", "Name", this.name, `@ is ${zone.spec.zoneName} itself; a final dot makes it absolute`),
        this.row("recordType", "Type", this.type), this.other),
      this.row("targets", "Data", this.targets, " "),
      h("div", {class: "pair"}, this.row("recordTTL", "TTL in seconds", this.ttl),
        this.row("expiresAt", "Goes away at (optional)", this.expires)),
      h("label", {class: "check"}, this.isOff, " Switched off: kept here and not answered"),
      row ? null : h("details", {}, h("summary", {}, "More"), this.row("namespace", "Namespace", this.namespace, "Whose object it will be.")));
    this.hint();
  }

  row(name, label, control, hint = "") {
    const place = h("div", {class: "fault", role: "alert"});
    this.faults.set(name, [place, control]);
    return h("div", {class: "row"}, field(label, control, hint), place);
  }

  hint() {
    const isOther = this.type.value === OTHER;
    this.other.hidden = !isOther;
    const text = isOther ? "As in a zone file; of a type without a name as \\# LENGTH HEX." : HINTS[this.type.value];
    fill(this.element.querySelector(`#${this.targets.id}-hint`), `One record a line. ${text}`);
  }

  get owner() {
    return absolute(this.name.value, this.zone.spec.zoneName);
  }

  /** The endpoint that is meant. What this form does not show stays as it was. */
  endpoint(before) {
    const {recordTTL, expiresAt, disabled, ...kept} = before || {};
    const isSame = before && bare(before.dnsName) === bare(this.owner);
    const found = {
      ...kept, dnsName: isSame ? before.dnsName : this.owner,
      recordType: this.type.value === OTHER ? this.other.value.trim().toUpperCase() : this.type.value,
      targets: this.targets.value.split("\n").map(one => one.trim()).filter(Boolean),
    };
    if (this.ttl.value !== "") found.recordTTL = Number(this.ttl.value);
    if (this.expires.value.trim()) found.expiresAt = this.expires.value.trim();
    if (this.isOff.checked) found.disabled = true;
    return found;
  }

  /** Put each fault of an endpoint at its field; those of elsewhere are returned. */
  place(causes, index) {
    this.clear();
    const mine = `spec.endpoints[${index}]`;
    return causes.filter(cause => {
      const [name, line] = cause.field.startsWith(`${mine}.`)
        ? cause.field.slice(mine.length + 1).replace("]", "").split("[") : [cause.field.replace(/^metadata\./, "")];
      const at = this.faults.get(name);
      if (!at) return true;
      at[0].append(h("p", {}, line === undefined ? cause.message : `line ${Number(line) + 1}: ${cause.message}`));
      at[1].setAttribute("aria-invalid", "true");
      return false;
    });
  }

  clear() {
    for (const [place, control] of this.faults.values()) {
      fill(place);
      control.removeAttribute("aria-invalid");
    }
  }
}

// --- what is written -------------------------------------------------------------------------

/** Change one endpoint of a record set, or its whole record set where it has others beside it. */
export async function editRecord(zone, row) {
  const where = placeOf(row);
  const {data: now, etag} = await request("GET", `/namespaces/${part(where.namespace)}/dnsrecordsets/${part(where.name)}`);
  const index = indexOf(now, row);
  const form = new RecordForm(zone, now.spec.endpoints[index]);
  return recordDialog(`Change ${relative(row.dnsName, zone.spec.zoneName)} ${row.recordType}`, form, async () => {
    const endpoints = now.spec.endpoints.with(index, form.endpoint(now.spec.endpoints[index]));
    return {where, etag, index, document: withEndpoints(now, endpoints)};
  });
}

/** Add records: to the object that holds the name already, else to a new one. */
export async function addRecord(zone) {
  const form = new RecordForm(zone, null);
  return recordDialog(`Add a record to ${zone.spec.zoneName}`, form, async () => {
    const endpoint = form.endpoint(null), namespace = form.namespace.value.trim();
    const there = await holderOf(zone, form.owner, namespace);
    if (there) {
      const endpoints = [...there.data.spec.endpoints, endpoint];
      const [where, etag] = [{kind: "dnsrecordsets", namespace, name: there.data.metadata.name}, there.etag];
      return {where, etag, index: endpoints.length - 1, document: withEndpoints(there.data, endpoints)};
    }
    const name = await freeName(objectName(form.owner, zone), namespace);
    const document = {apiVersion: API_VERSION, kind: "DNSRecordSet", spec: {zoneRef: {name: zone.metadata.name}, endpoints: [endpoint]}};
    return {where: {kind: "dnsrecordsets", namespace, name}, index: 0, document};
  });
}

/** The dialog of both: what the server finds wrong is at its field, and nothing is written then. */
async function recordDialog(title, form, change) {
  const done = await ask(title, [form.element], {onsubmit: async (reason, said, insisted) => {
    form.clear();
    const {where, etag, document, index} = await change();
    const write = query => request("PUT", objectPath(where), {body: document, ifMatch: etag, ifNoneMatch: etag ? "" : "*", query});
    try {
      await write({dryRun: true, ...insisted});
      return await write({reason, ...insisted});
    } catch (failure) {
      if (failure.code === 412 && etag) fill(said, await movedBox(where, failure));
      else if (failure.causes?.length) {
        failure.causes = form.place(failure.causes, index);
        if (failure.causes.length) fill(said, failureBox(failure));
      } else throw failure;
      return undefined;
    }
  }});
  if (done) say(done.warnings.length ? done.warnings.join("; ") : `Saved, at position ${done.position}: it is in the next answer.`,
    done.warnings.length ? "warn" : "good");
  return done;
}

/** Take records away: with their record set, where it holds nothing else. */
export async function deleteRecord(zone, row) {
  const where = placeOf(row);
  const {data: now, etag} = await request("GET", `/namespaces/${part(where.namespace)}/dnsrecordsets/${part(where.name)}`);
  const index = indexOf(now, row), left = now.spec.endpoints.filter((_, i) => i !== index);
  const gone = changeLines(differences({[row.recordType]: row.targets}, {}));
  const done = await ask(`Delete ${relative(row.dnsName, zone.spec.zoneName)} ${row.recordType}`, [gone], {
    submit: "Delete", danger: true,
    onsubmit: async (reason, said, insisted) => {
      const given = {ifMatch: etag, query: {reason, ...insisted}};
      try {
        return left.length ? await request("PUT", objectPath(where), {body: withEndpoints(now, left), ...given})
          : await request("DELETE", objectPath(where), given);
      } catch (failure) {
        if (failure.code !== 412) throw failure;
        fill(said, await movedBox(where, failure));
        return undefined;
      }
    },
  });
  if (done) say("Deleted. History can bring it back.");
  return done;
}

function withEndpoints(now, endpoints) {
  const {metadata, spec} = written(now);
  return {apiVersion: now.apiVersion, kind: now.kind, metadata, spec: {...spec, endpoints}};
}

/** Where a row stands in its object, which may have changed since the row was shown. */
function indexOf(document, row) {
  const {endpoints} = document.spec;
  const isIt = one => one && one.dnsName === row.dnsName && one.recordType === row.recordType
    && (one.setIdentifier || "") === (row.setIdentifier || "");
  const index = isIt(endpoints[row.index]) ? row.index : endpoints.findIndex(isIt);
  if (index < 0) throw fault("the record is not there any more; load the zone again");
  return index;
}

/** The record set of ours in a namespace that holds a name already. */
async function holderOf(zone, owner, namespace) {
  let items = [];
  try {
    ({items} = await get(`/dnszones/${part(zone.metadata.name)}/records`, {dnsName: owner}));
  } catch (failure) {
    if (failure.code !== 422) throw failure;  // no name: what is written with it is refused at its field
  }
  for (const row of items) {
    if (!row.object || placeOf(row).namespace !== namespace) continue;
    const found = await request("GET", `/namespaces/${part(namespace)}/dnsrecordsets/${part(placeOf(row).name)}`);
    if (isOurs(found.data)) return found;
  }
  return null;
}

/** What a record set of a name is called: as an import calls it, where the name allows that. */
export function objectName(owner, zone) {
  const text = relative(owner, zone.spec.zoneName).toLowerCase();
  const said = text === "@" ? "apex" : text.replace(/^\*/, "wildcard");
  const clean = said.replace(/[^a-z0-9.-]/g, "-").split(".").map(label => label.replace(/^-+|-+$/g, "") || "x").join(".");
  return `${clean}.${zone.metadata.name}`.slice(0, OBJECT_NAME_MAX).replace(/[-.]+$/, "");
}

async function freeName(name, namespace) {
  for (let i = 1; i <= NAMES_TRIED; i++) {
    const tried = i === 1 ? name : `${name}-${i}`;
    try {
      await request("GET", `/namespaces/${part(namespace)}/dnsrecordsets/${part(tried)}`);
    } catch (failure) {
      if (failure.code === 404) return tried;
      throw failure;
    }
  }
  return `${name}-${Date.now().toString(36)}`;
}
