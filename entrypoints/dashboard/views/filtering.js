// Filtering: block lists, policies and client groups, and pausing what is blocked.

import {fill, h} from "../dom.js";
import {ask as request, get, may, who} from "../api.js";
import {ask, badge, button, card, counted, document_, empty, field, heading, note, number, say, select, table, when} from "../ui.js";
import {edit, isEnabled, remove, toggle} from "../editing.js";
import {keptDrawn} from "../live.js";
import {stateOf} from "./overview.js";
import {addList} from "../lists.js";
import {rule} from "../filters.js";

const EVERY_MS = 5000;
const POLICY = {clientGroupRefs: [], blockListRefs: [], deny: [], allow: []};
const GROUP = {clients: [{cidr: "192.168.1.0/24"}]};

export async function show(root, {signal}) {
  const place = h("div", {class: "view"});
  fill(root, heading("Filtering", "What is blocked, for whom. Every change is in the log, and can be undone."), place);
  let again = null;
  const changed = doing => async () => { if (await doing()) await again(); };
  again = await keptDrawn(place, {
    load: () => asked(signal), draw: found => sections(found, changed), signal, everyMs: EVERY_MS,
  });
}

async function asked(signal) {
  const [blocking, rows, ...items] = await Promise.all([
    get("/blocking", {}, signal), get("/lists", {}, signal),
    ...["/blocklists", "/policies", "/clientgroups"].map(path => get(path, {limit: 500}, signal).then(found => found.items)),
  ]);
  return {blocking, rows, items};
}

function sections({blocking, rows, items: [lists, policies, groups]}, changed) {
  return [
    pausing(blocking, groups, changed),
    blockLists(rows, lists, policies, changed),
    policyTable(policies, changed),
    groupTable(groups, changed),
  ];
}

// --- pauses ----------------------------------------------------------------------------------

const SPANS = [["5 minutes", "300"], ["30 minutes", "1800"], ["1 hour", "3600"], ["8 hours", "28800"], ["until it is resumed", ""]];

function pausing({pauses, policies, diagnoses}, groups, changed) {
  const state = pauses.length
    ? pauses.map(one => h("p", {}, badge("paused", "warn"), " for ", one.group || "everybody", ", ",
      one.until ? ["ends ", when(one.until)] : "until it is resumed", " ",
      may("blocking") ? button("Resume", changed(() => resume(one.group))) : null))
    : h("p", {}, policies ? [badge("blocking", "good"), ` by ${counted(policies, "policy", "policies")}`]
      : who().namespaces.length ? "No policy is in the namespaces of your token; those of others may block."
        : [badge("nothing is blocked", "warn"), " There is no policy yet; adding a block list makes one."]);
  return card("Blocking", state, diagnoses.map(one => note(one, "warn")),
    may("blocking") ? h("div", {class: "actions"}, button("Pause blocking", changed(() => pause(groups)))) : null);
}

async function pause(groups) {
  const names = groups.map(one => `${one.metadata.namespace}/${one.metadata.name}`);
  const group = select([["everybody", ""], ...names], "");
  const span = select(SPANS, "1800");
  const done = await ask("Pause blocking", [
    field("For whom", group), field("For how long", span, "Zones, rewrites and safe search stay."),
  ], {
    submit: "Pause",
    onsubmit: reason => request("PUT", "/blocking", {body: {
      blocks: false, group: group.value, for_s: span.value ? Number(span.value) : null, reason,
    }}),
  });
  if (done) say("Blocking is paused", "warn");
  return Boolean(done);
}

async function resume(group) {
  const done = await ask(`Resume blocking for ${group || "everybody"}?`, [], {
    submit: "Resume", onsubmit: reason => request("PUT", "/blocking", {body: {blocks: true, group, reason}}),
  });
  if (done) say("Blocking is resumed");
  return Boolean(done);
}

// --- lists -----------------------------------------------------------------------------------

function blockLists(rows, lists, policies, changed) {
  const add = may("objects.write") ? button("Add a list", changed(() => addList(lists, policies)), {class: "primary"}) : null;
  const all = may("cache") && rows.length ? button("Refresh all", changed(refreshAll)) : null;
  const byName = new Map(lists.map(one => [`${one.metadata.namespace}/${one.metadata.name}`, one]));
  const used = new Set(policies.flatMap(one => (one.spec.blockListRefs || []).map(ref =>
    ref.includes("/") ? ref : `${one.metadata.namespace}/${ref}`)));
  const nameIn = row => `${row.namespace}/${row.name}`;
  const columns = [
    {title: "List", cell: row => [h("strong", {}, row.name), " ", h("span", {class: "quiet"}, row.namespace)]},
    {title: "State", cell: row => [stateOf(row), used.has(nameIn(row)) ? "" : [" ", badge("no policy uses it", "warn")]]},
    {title: "Rules", class: "number", cell: row => number(row.entries)},
    {title: "Sources", cell: row => row.sources.map(sourceOf)},
    {title: "", class: "doings", cell: row => listActions(row, byName.get(nameIn(row)), changed)},
  ];
  return card("Block lists", rows.length ? table(columns, rows, {about: "Block lists"})
    : empty("No list is subscribed to.", h("p", {}, "A list of ad and tracking hosts is a good start: add one by its URL.")),
  h("div", {class: "actions"}, add, all));
}

function sourceOf(source) {
  return h("div", {class: "source"}, h("span", {class: "mono"}, source.source),
    h("div", {class: "quiet"}, counted(source.entries, "rule", "rules"),
      source.invalidEntries ? `, ${counted(source.invalidEntries, "line", "lines")} not understood` : null,
      source.lastSuccess ? [", fetched ", when(source.lastSuccess)] : null),
    source.error ? h("div", {class: "fault"}, source.error) : null);
}

function listActions(row, object, changed) {
  const isFetched = row.enabled && object?.spec.sources.some(one => !one.inline);
  return h("div", {class: "actions"},
    may("lists.refresh") && isFetched ? button("Refresh", changed(() => refreshOne(row))) : null,
    object && may("objects.write") ? usual("list", "blocklists", object, changed) : null);
}

async function refreshOne(row) {
  await said(request("POST", `/namespaces/${encodeURIComponent(row.namespace)}/blocklists/${encodeURIComponent(row.name)}:refresh`));
  return true;
}

async function refreshAll() {
  await said(request("POST", "/lists:refresh"));
  return true;
}

/** What came of a request that needs no dialog. */
async function said(asking) {
  try {
    const {data} = await asking;
    say(data.lists.length ? `${data.lists.join(", ")}: fetched now` : "No list has a source that is fetched");
  } catch (failure) {
    say(failure.message, "bad");
  }
}

// --- policies and groups ---------------------------------------------------------------------

function usual(what, plural, object, changed) {
  const {name} = object.metadata;
  return [
    button("Edit", changed(() => edit(`Edit ${what} ${name}`, plural, object))),
    plural === "clientgroups" ? null : button(isEnabled(object) ? "Switch off" : "Switch on", changed(() => toggle(what, plural, object))),
    button("Remove", changed(() => remove(what, plural, object)), {class: "danger"}),
  ];
}

function policyTable(policies, changed) {
  const columns = [
    {title: "Policy", cell: nameOf},
    {title: "For", cell: one => (one.spec.clientGroupRefs || []).join(", ") || "clients of no other policy"},
    {title: "Lists", cell: one => (one.spec.blockListRefs || []).join(", ")},
    {title: "Own rules", cell: ({spec}) => ownRules(spec)},
    {title: "State", cell: conditionsOf},
    {title: "", class: "doings", cell: one => doings("policy", "policies", one, changed)},
  ];
  const add = may("objects.write") ? [
    button("Block a name", changed(() => rule("deny", ""))), button("Allow a name", changed(() => rule("allow", ""))),
    button("New policy", changed(() => edit("New policy", "policies", null, POLICY)))] : null;
  return card("Policies", policies.length ? table(columns, policies, {about: "Policies"})
    : empty(who().namespaces.length ? "There is no policy in the namespaces of your token." : "There is no policy, so nothing is blocked.", h("p", {}, "A policy says which lists and rules count for which clients.")),
  h("div", {class: "actions"}, add));
}

function ownRules(spec) {
  const counts = [["deny", "blocked"], ["allow", "allowed"], ["rewrites", "rewritten"]]
    .filter(([name]) => spec[name]?.length).map(([name, word]) => `${spec[name].length} ${word}`);
  return [counts.join(", "), spec.schedule ? [" ", badge("at hours")] : null,
    spec.action === "bypass" ? [" ", badge("filters nothing")] : null];
}

function groupTable(groups, changed) {
  const columns = [
    {title: "Group", cell: nameOf},
    {title: "Clients", cell: one => (one.spec.clients || []).map(client => Object.values(client).join("")).join(", ")},
    {title: "State", cell: conditionsOf},
    {title: "", class: "doings", cell: one => doings("client group", "clientgroups", one, changed)},
  ];
  const add = may("objects.write")
    ? button("New client group", changed(() => edit("New client group", "clientgroups", null, GROUP))) : null;
  return card("Client groups", groups.length ? table(columns, groups, {about: "Client groups"})
    : empty("There is no client group.",
      h("p", {}, "A group names devices by address, network, MAC or ID, so that policies can be for them.")),
  h("div", {class: "actions"}, add));
}

function nameOf(object) {
  const {name, namespace} = object.metadata;
  return h("details", {}, h("summary", {}, h("strong", {}, name), " ", h("span", {class: "quiet"}, namespace)),
    document_(object.spec));
}

function conditionsOf(object) {
  if (!isEnabled(object)) return badge("switched off");
  const conditions = object.status?.conditions || [];
  if (!conditions.length) return badge("not judged yet");
  const bad = conditions.filter(one => one.type === "Ready" ? one.status === "False" : one.type === "Degraded" && one.status === "True");
  return bad.length ? bad.map(one => h("div", {}, badge(one.reason, "warn"), " ", one.message)) : badge("ready", "good");
}

function doings(what, plural, object, changed) {
  return may("objects.write") ? h("div", {class: "actions"}, usual(what, plural, object, changed)) : null;
}
