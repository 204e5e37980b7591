// What changed: lines as the command line prints them, events of the log, and taking one back.

import {h, fill} from "./dom.js";
import {ask as request, get, may, part, rest} from "./api.js";
import {ask, badge, button, counted as counting, empty, failureBox, note, say, when} from "./ui.js";

const PLURALS = {
  dnszone: "dnszones", dnsrecordset: "dnsrecordsets", blocklist: "blocklists",
  clientgroup: "clientgroups", policy: "policies",
};
const CONTENT = ["obj.applied.v1", "obj.deleted.v1"];
const LIVE_MS = 3000;
const LIVE_MAX = 500;  // new ones at once
const PAGE = 50;
const SHOWN_MAX = 200;  // steps of a plan, lines of a change

const BADGES = {created: "good", deleted: "bad", denied: "bad", unfinished: "warn"};

/** Parts of "dnsrecordset/default/www": {kind (plural), namespace ("-" where there is none), name};
 * null for what is no object that can be opened. */
export function objectOf(text) {
  const parts = text.split("/");
  const kind = PLURALS[parts[0]];
  if (!kind || parts.length < 2) return null;
  return {kind, namespace: parts.length > 2 ? parts[1] : "-", name: parts.at(-1)};
}

export const objectHash = ({kind, namespace, name}) => `#/objects/${part(kind)}/${part(namespace)}/${part(name)}`;

/** Path of an object in the API. */
export function objectPath({kind, namespace, name}) {
  return `${namespace === "-" ? "" : `/namespaces/${part(namespace)}`}/${part(kind)}/${part(name)}`;
}

const MANAGED_BY = "kudurru.io/managed-by";
const OURS = "kudurru";

export const managerOf = document => document.metadata.annotations?.[MANAGED_BY] || OURS;

export const isOurs = document => managerOf(document) === OURS;

/** Whether the token may write what somebody manages: what others manage has to be taken over. */
export const mayWrite = manager => may("objects.write") && (manager === OURS || may("objects.force"));

/** What people write of an object: labels, annotations and spec. */
export function written(document) {
  const {[MANAGED_BY]: manager, ...annotations} = document.metadata.annotations || {};
  const metadata = {};
  if (Object.keys(document.metadata.labels || {}).length) metadata.labels = document.metadata.labels;
  if (Object.keys(annotations).length) metadata.annotations = annotations;
  return {metadata, spec: document.spec};
}

export function objectLink(text) {
  const found = objectOf(text);
  return found ? h("a", {href: objectHash(found)}, text) : h("span", {}, text);
}

/** Differences, {field, from, to}, as lines with - and +. */
export function changeLines(changes) {
  if (!changes.length) return h("p", {class: "quiet"}, "No field differs.");
  const rows = changes.slice(0, SHOWN_MAX).flatMap(one => [
    "from" in one ? line("-", one.field, one.from) : null, "to" in one ? line("+", one.field, one.to) : null,
  ]);
  const left = changes.length - SHOWN_MAX;
  return h("div", {class: "diff", role: "list"}, rows,
    left > 0 ? h("p", {class: "quiet"}, `and ${left} more fields`) : null);
}

function line(mark, name, value) {
  const kind = mark === "-" ? "gone" : "come";
  return h("div", {class: kind, role: "listitem"}, `${mark} ${name}: ${JSON.stringify(value)}`);
}

/** Differences between two values, leaf by leaf, as the server tells them. */
export function differences(before, after, path = "") {
  const isMap = value => value !== null && typeof value === "object" && !Array.isArray(value);
  if (isMap(before) && isMap(after)) {
    return [...new Set([...Object.keys(before), ...Object.keys(after)])].sort().flatMap(name => {
      const inner = path ? `${path}.${name}` : name;
      if (!(name in after)) return [{field: inner, from: before[name]}];
      if (!(name in before)) return [{field: inner, to: after[name]}];
      return differences(before[name], after[name], inner);
    });
  }
  if (Array.isArray(before) && Array.isArray(after) && before.length === after.length) {
    return before.flatMap((old, i) => differences(old, after[i], `${path}[${i}]`));
  }
  return JSON.stringify(before) === JSON.stringify(after) ? [] : [{field: path, from: before, to: after}];
}

// --- events ----------------------------------------------------------------------------------

/**
 * Events that a query of /events selects, newest first, each opened for what it changed. Returns
 * {element, follow}: `follow(true)` shows new ones as they come.
 */
export async function eventList(query, signal, {nothing = "Nothing in the log matches."} = {}) {
  const list = h("div", {class: "events"}), foot = h("div", {class: "actions"});
  const element = h("div", {}, list, foot);
  let newest = 0, live = null;

  async function page(after) {
    const found = await get("/events", {limit: PAGE, ...query, continue: after}, signal);
    if (!after && found.items.length) newest = found.items[0].seq;
    list.append(...found.items.map(one => eventRow(one, signal)));
    if (!list.children.length && !found.continue) fill(list, empty(nothing));
    fill(foot, found.continue ? button("Earlier ones", async event => {
      event.target.disabled = true;
      try { await page(found.continue); } catch (failure) { foot.append(failureBox(failure)); }
    }) : null);
    if (!list.children.length && found.continue) fill(list, note("None among the newest events. There are earlier ones to look through."));
  }

  async function poll(stop) {
    while (!stop.aborted) {
      await rest(LIVE_MS, stop);
      if (stop.aborted || document.hidden) continue;
      try {
        const {items} = await get("/events", {...query, since: newest + 1, limit: LIVE_MAX}, stop);
        if (!items.length) continue;
        newest = items[0].seq;
        list.querySelector(".empty, .note")?.remove();
        list.prepend(...items.map(one => eventRow(one, signal, true)));
      } catch (failure) {
        if (!stop.aborted && failure.code === 401) return;
      }
    }
  }

  function follow(isOn) {
    live?.abort();
    if (!isOn) return;
    live = new AbortController();
    signal.addEventListener("abort", () => live.abort(), {once: true});
    poll(live.signal);
  }

  await page("");
  return {element, follow};
}

function eventRow(event, signal, isNew = false) {
  const body = h("div", {class: "body"});
  const row = h("details", {class: isNew ? "event new" : "event", "data-seq": String(event.seq), ontoggle: () => {
    if (row.open && !body.children.length) openEvent(body, event, signal);
  }},
  h("summary", {},
    h("span", {class: "seq mono", title: "position in the log"}, event.seq),
    badge(event.verb, BADGES[event.verb] || ""),
    h("span", {class: "what"}, event.object),
    h("span", {class: "by"}, event.actor, " · ", when(event.time)),
    event.reason ? h("span", {class: "why"}, event.reason) : null), body);
  return row;
}

async function openEvent(body, event, signal) {
  fill(body, h("p", {class: "quiet"}, "Reading…"));
  try {
    const {items} = await get("/events", {since: event.seq, until: event.seq, type: event.type, changes: "true"}, signal);
    fill(body, eventDetails(items.find(one => one.seq === event.seq) || event));
  } catch (failure) {
    fill(body, failureBox(failure));
  }
}

function eventDetails(event) {
  const facts = [
    ["When", event.time], ["Who", `${event.actor} as ${event.manager}`], ["From", event.source],
    ["Reason", event.reason], ["Cause", event.cause],
    ["Position", event.txn === event.seq ? event.seq : `${event.seq}, in the change ${event.txn}`],
  ];
  const told = event.access || event.restore || event.mirror;
  const canUndo = may("undo") && CONTENT.includes(event.type) && !event.redacted && objectOf(event.object);
  const object = objectOf(event.object);
  return [
    h("dl", {class: "facts"}, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    event.redacted ? note("What it was has been erased.", "warn") : null,
    event.changes ? changeLines(event.changes) : null,
    told ? changeLines(differences({}, told)) : null,
    h("div", {class: "actions"},
      object ? h("a", {href: objectHash(object)}, "Open the object") : null,
      object && event.verb !== "created" ? h("a", {href: `${objectHash(object)}?at=${event.txn - 1}`}, "As it was before") : null,
      canUndo ? button("Undo this change", () => undo(event.seq)) : null),
  ];
}

/** Of things whose plural ends in an s. */
export const counted = (count, what) => counting(count, what, `${what}s`);

// --- plans -----------------------------------------------------------------------------------

/** A plan of restore or undo: how much, of which zones, and each object with what changes. */
export function planBox(plan) {
  const counts = {};
  for (const step of plan.steps) counts[step.action] = (counts[step.action] || 0) + 1;
  if (!plan.steps.length && !plan.skipped.length) return note("Nothing to do: it is so already.");
  const left = plan.steps.length - SHOWN_MAX;
  return h("div", {class: "plan"},
    h("p", {}, plan.steps.length
      ? Object.entries(counts).map(([action, count]) => [badge(`${action} ${count}`, action === "delete" ? "bad" : action === "create" ? "good" : ""), " "])
      : "Nothing is done: what was changed again since is left as it is. Undo what came after first, or restore to a moment."),
    plan.zones.map(zone => h("p", {},
      `Zone ${zone.zone}: changes or removes ${counted(zone.recordsChanged, "record")}, changes or adds `
      + `${counted(zone.recordsAdded, "record")}; serial ${zone.serial ?? "none yet"}, then at least ${zone.nextSerial}`)),
    plan.steps.slice(0, SHOWN_MAX).map((step, i) => h("details", {class: "event", open: i < 3 && plan.steps.length < 10},
      h("summary", {}, badge(step.action, BADGES[`${step.action}d`] || ""), h("span", {class: "what"}, step.object), owner(step)),
      h("div", {class: "body"}, changeLines(step.changes)))),
    left > 0 ? h("p", {class: "quiet"}, `and ${left} more objects`) : null,
    plan.skipped.length ? [h("h3", {}, "Left as it is"), h("ul", {}, plan.skipped.map(one => h("li", {}, one.object, ": ", one.reason)))] : null);
}

function owner(step) {
  if (step.ownerNow) return h("span", {class: "quiet"}, `back to ${step.owner} from ${step.ownerNow}`);
  if (step.ownerThen) return h("span", {class: "quiet"}, `${step.owner} keeps it; ${step.ownerThen} had it then`);
  return null;
}

/** Show what taking a change back would do, and do it when the person agrees. */
export async function undo(what) {
  let plan;
  try {
    plan = (await request("POST", "/undo", {body: {what: String(what), apply: false}})).data.plan;
  } catch (failure) {
    await ask(`Undo ${what}`, [failureBox(failure)], {submit: "Close", withReason: false, onsubmit: async () => true});
    return false;
  }
  const done = await ask(`Undo the change ${plan.target}`, [planBox(plan)], {
    submit: plan.steps.length ? plan.skipped.length ? "Undo the rest" : "Undo" : "Close",
    withReason: plan.steps.length > 0, wide: true,
    onsubmit: async (reason, said, insisted) => {
      if (!plan.steps.length) return {seq: 0};
      const body = {what: String(what), skipConflicts: plan.skipped.length > 0, reason, ...insisted};
      return (await request("POST", "/undo", {body})).data;
    },
  });
  if (!done?.seq) return false;
  say(`Taken back, at position ${done.seq}.`);
  dispatchEvent(new HashChangeEvent("hashchange"));  // show the view anew
  return true;
}

// --- refusals -------------------------------------------------------------------------------

/** Who changed an object meanwhile, for a write that was refused because of that (412). */
export async function movedBox(where, failure) {
  const object = {kind: where.kind, name: where.name, ...(where.namespace === "-" ? {} : {namespace: where.namespace})};
  let last = null;
  try { [last] = (await get("/events", {...object, limit: 1, noStatus: "true"})).items; } catch { /* the refusal is enough */ }
  return h("div", {class: "note bad", role: "alert"},
    h("p", {}, h("strong", {}, `${failure.reason}: `), "somebody else changed it meanwhile. Nothing of yours was written."),
    last ? h("p", {}, `${last.actor} `, when(last.time), `: ${last.verb} at position ${last.seq}`,
      last.reason ? `, “${last.reason}”` : "", ".") : h("p", {}, failure.message),
    h("p", {}, h("a", {href: objectHash(where), onclick: () => document.querySelector("dialog[open]")?.close()}, "Look at it as it is now"),
      ", then make your change again."));
}
