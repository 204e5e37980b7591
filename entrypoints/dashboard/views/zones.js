// Zones: which there are, with their serials and who changed them last; making and importing them.

import {fill, h} from "../dom.js";
import {ask as request, get, may, part, who} from "../api.js";
import {ask, badge, button, card, empty, failureBox, field, heading, note, number, rowOf, say, select, table, when} from "../ui.js";
import {counted} from "../changes.js";

const API_VERSION = "kudurru.io/v1alpha1";
const PAGE = 50;
const KINDS = [
  ["Primary: its records are kept here", "Primary"],
  ["Secondary: it is fetched from other servers", "Secondary"],
  ["Forward: its queries go to other resolvers", "Forward"],
];

/** Whether the token may make zones: one with limits makes none. */
const mayMake = () => may("objects.write") && !who().namespaces.length && !who().zones.length;

const COLUMNS = [
  {title: "Zone", cell: one => h("a", {href: `#/zones/${part(one.metadata.name)}`}, one.spec.zoneName)},
  {title: "Type", cell: one => badge(one.spec.type || "Primary")},
  {title: "Serial", class: "number", cell: one => one.status?.serial ?? ""},
  {title: "Records", class: "number", cell: one => one.status?.recordCount === undefined ? "" : number(one.status.recordCount)},
  {title: "Last change", cell: one => h("span", {class: "last quiet", "data-zone": one.metadata.name}, "…")},
];

export async function show(root, {signal}) {
  const body = h("div", {}), foot = h("div", {class: "actions"});
  fill(root,
    heading("Zones", "What this node answers for itself, or has from other servers.",
      mayMake() ? [button("Add a zone", () => addZone(), {class: "primary"}), button("Import a zone file", () => importZone())] : null),
    body, foot);
  let rows = null;
  async function page(after) {
    const found = await get("/dnszones", {limit: PAGE, continue: after}, signal);
    if (!found.items.length && !rows) {
      fill(body, empty("There is no zone yet.", mayMake()
        ? h("p", {}, "Add one to give names to machines of yours, such as ", h("code", {}, "home.arpa"),
          ", or import the file of another server.") : h("p", {}, "Your token makes none.")));
      return;
    }
    if (!rows) {
      const made = table(COLUMNS, found.items, {about: "Zones"});
      rows = made.querySelector("tbody");
      fill(body, made);
    } else rows.append(...found.items.map(one => rowOf(COLUMNS, one)));
    const more = found.metadata.continue;
    fill(foot, more ? button("More zones", async () => {
      try { await page(more); } catch (failure) { foot.append(failureBox(failure)); }
    }) : null);
    fillLast(rows, signal);
  }
  await page("");
}

/** Who changed each zone last, one after the other: a page of zones is many questions to the log. */
async function fillLast(rows, signal) {
  for (const place of rows.querySelectorAll(".last:not([data-asked])")) {
    place.dataset.asked = "";
    if (!may("history")) { fill(place); continue; }
    try {
      const {items: [last]} = await get("/events", {zone: place.dataset.zone, limit: 1, noStatus: "true"}, signal);
      fill(place, last ? [when(last.time), ` by ${last.actor}`] : "");
    } catch {
      if (signal.aborted) return;
      fill(place, "unknown");
    }
  }
}

// --- a new one -------------------------------------------------------------------------------

const listOf = control => control.value.split(/[\s,]+/).filter(Boolean);

async function addZone() {
  const name = h("input", {type: "text", name: "zone", required: true, spellcheck: "false", placeholder: "home.arpa"});
  const type = select(KINDS, "Primary", {name: "kind", onchange: () => choose()});
  const servers = h("input", {type: "text", name: "nameservers", spellcheck: "false", placeholder: "ns1.home.arpa"});
  const ttl = h("input", {type: "number", name: "ttl", min: "0", placeholder: "300"});
  const primaries = h("input", {type: "text", name: "primaries", spellcheck: "false", placeholder: "192.0.2.53"});
  const upstreams = h("input", {type: "text", name: "upstreams", spellcheck: "false", placeholder: "192.0.2.53"});
  const parts = {
    Primary: h("div", {}, field("Name servers (optional)", servers, "Needed where others on the internet ask for the zone."),
      field("Default TTL in seconds (optional)", ttl)),
    Secondary: field("Addresses of its primaries", primaries),
    Forward: field("Addresses of the resolvers", upstreams),
  };
  const choose = () => { for (const [key, part] of Object.entries(parts)) part.hidden = key !== type.value; };
  choose();
  const specs = {
    Primary: () => ({...(listOf(servers).length ? {nameservers: listOf(servers)} : {}), ...(ttl.value ? {defaultTTL: Number(ttl.value)} : {})}),
    Secondary: () => ({secondary: {primaries: listOf(primaries).map(address => ({address}))}}),
    Forward: () => ({forward: {upstreams: listOf(upstreams)}}),
  };
  const done = await ask("Add a zone", [field("Its DNS name", name), field("Type", type), Object.values(parts)], {
    submit: "Add", onsubmit: async reason => {
      const zoneName = name.value.trim(), object = zoneName.toLowerCase().replace(/\.$/, "") || "root";
      const document = {apiVersion: API_VERSION, kind: "DNSZone", spec: {zoneName, type: type.value, ...specs[type.value]()}};
      await request("PUT", `/dnszones/${part(object)}`, {body: document, ifNoneMatch: "*", query: {reason}});
      return object;
    }});
  if (!done) return;
  say("The zone is there.");
  location.hash = `#/zones/${part(done)}`;
}

// --- a zone file -----------------------------------------------------------------------------

/** Import a master file: the server reads it, shows what it comes to, and applies it when agreed. */
export async function importZone(zoneName = "") {
  const text = h("textarea", {name: "file", rows: "10", spellcheck: "false", placeholder: "$ORIGIN home.arpa.\n@ IN SOA …"});
  const file = h("input", {type: "file", onchange: async () => { text.value = await file.files[0].text(); }});
  const name = h("input", {type: "text", name: "zone", value: zoneName, spellcheck: "false"});
  const replaces = h("input", {type: "checkbox", name: "replace"});
  const preview = h("div", {});
  let agreed = null;
  const done = await ask("Import a zone file", [
    field("A file of yours", file), field("or its text", text),
    field("Zone (optional)", name, "Where the file does not say it by $ORIGIN."),
    h("label", {class: "check"}, replaces, " Also delete what the zone has and the file has not"), preview,
  ], {wide: true, submit: "Import", onsubmit: async (reason, said, insisted) => {
    const given = JSON.stringify([text.value, name.value, replaces.checked]);
    const read = (await request("POST", "/dnszones:read", {body: text.value, type: "text/dns", query: {zone: name.value.trim()}})).data;
    const batch = {apply: read.apply, delete: replaces.checked ? read.surplus : [], reason: reason || "zone import by the page"};
    if (mayMake()) batch.importedSerials = read.importedSerials;
    if (agreed !== given) {
      const {data} = await request("POST", "/batch", {body: {...batch, dryRun: true, allowMassChange: true, ...insisted}});
      fill(preview, outcomeBox(read, data.outcomes, replaces.checked));
      agreed = given;
      return undefined;
    }
    await request("POST", "/batch", {body: {...batch, ...insisted}});
    return read;
  }});
  if (!done) return;
  say(`${done.zone}: ${counted(done.records, "record")}.`);
  const hash = `#/zones/${part(done.name)}`;
  if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = hash;
}

function outcomeBox(read, outcomes, replaces) {
  const counts = {};
  for (const one of outcomes) counts[one.verb] = (counts[one.verb] || 0) + 1;
  const left = replaces ? 0 : read.surplus.length;
  return card(`${read.zone}: ${counted(read.records, "record")}`,
    h("p", {}, "Objects: ", Object.entries(counts).map(([verb, count]) => [badge(`${verb} ${count}`, verb === "deleted" ? "bad" : ""), " "])),
    left ? note(`Left as they are, as the file does not have them: ${counted(left, "record set")}.`) : null,
    read.warnings.slice(0, 20).map(one => note(one, "warn")),
    h("p", {class: "quiet"}, "Nothing was written yet: import again to do it."));
}
