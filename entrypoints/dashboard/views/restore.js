// Restore: bring objects back to how they were, plan first; and what was deleted.

import {fill, h} from "../dom.js";
import {ask as request, fault, get, may} from "../api.js";
import {ask, badge, button, card, empty, failureBox, field, heading, note, say, select, table, when} from "../ui.js";
import {counted, objectLink, objectOf, objectPath, planBox} from "../changes.js";

const DIGEST_TYPED = 8;  // characters of the plan's digest that are asked for
const DELETED_MAX = 50;
const DELETED = "obj.deleted.v1";

export async function show(root, {query, signal}) {
  const marks = h("datalist", {id: "moments"});
  const plan = h("div", {}), deleted = h("div", {}, h("p", {class: "quiet"}, "Reading…"));
  fill(root,
    heading("Restore", "Nothing is ever taken out of the log: going back is a change of its own, which can be undone.",
      may("mark") ? button("Mark this moment", () => mark()) : null),
    card("Go back to a moment", restoreForm(query, plan, marks), plan), card("Deleted objects", deleted));
  if (!may("history")) { fill(deleted, note("Your token reads no history.")); return; }
  readMarks(marks, signal).catch(() => {});
  try {
    fill(deleted, await deletedTable(signal));
  } catch (failure) {
    if (!signal.aborted) fill(deleted, failureBox(failure));
  }
}

// --- to a moment -----------------------------------------------------------------------------

const SCOPES = [
  ["A zone and its records", "zone"], ["One object", "object"], ["A namespace", "namespace"], ["All objects of a kind", "kind"],
];
const HINTS = {
  zone: "By DNS name or object name, also one that was deleted.", object: "KIND/NAME or KIND/NAMESPACE/NAME: dnsrecordset/default/www.example.org",
  namespace: "Its name.", kind: "DNSRecordSet, Policy, BlockList, …", all: "",
};

function restoreForm(query, plan, marks) {
  const moment = h("input", {type: "text", name: "at", required: true, value: query.get("at") || "", placeholder: "2h ago", spellcheck: "false", list: "moments"});
  const scopes = may("restore.all") ? [...SCOPES, ["Everything", "all"]] : SCOPES;
  const first = ["zone", "object", "namespace", "kind"].find(one => query.get(one)) || "zone";
  const what = select(scopes, first, {name: "scope", onchange: () => choose()});
  const which = h("input", {type: "text", name: "which", value: query.get(first) || "", spellcheck: "false"});
  const force = h("input", {type: "checkbox", name: "force"});
  const whichField = field("Which", which, " ");
  const choose = () => {
    whichField.hidden = what.value === "all";
    fill(whichField.querySelector("small"), HINTS[what.value]);
  };
  choose();
  const said = h("div", {});
  return h("form", {onsubmit: async event => {
    event.preventDefault();
    fill(said);
    fill(plan, h("p", {class: "quiet"}, "Planning…"));
    const wanted = {at: moment.value.trim(), scope: scopeOf(what.value, which.value.trim()), force: force.checked};
    try {
      fill(plan, agreement(wanted, (await request("POST", "/restore", {body: wanted})).data.plan, plan));
    } catch (failure) {
      fill(plan, failureBox(failure));
    }
  }},
  field("Moment", moment, "A time ago, a time (2027-01-31T12:00:00Z), a position, or mark:NAME."), marks,
  h("div", {class: "pair"}, field("What", what), whichField),
  may("objects.force") ? h("label", {class: "check"}, force, " Also objects that another manager owns since") : null, said,
  h("div", {class: "actions"}, h("button", {type: "submit", class: "primary"}, "Show what would change")));
}

function scopeOf(what, which) {
  if (what === "all") return {all: true};
  return what === "object" ? {objects: [which]} : {[what]: which};
}

/** A plan, and what carries it out: this plan and no other, or nothing. */
function agreement(wanted, plan, place) {
  if (!plan.steps.length) return planBox(plan);
  return h("div", {}, h("h3", {}, `To position ${plan.target}`), planBox(plan),
    h("div", {class: "actions"}, button("Restore", () => carryOut(wanted, plan, place), {class: "danger"}), button("Leave it", () => fill(place))));
}

async function carryOut(wanted, plan, place) {
  const typed = h("input", {type: "text", name: "digest", required: true, autocomplete: "off", spellcheck: "false", class: "mono"});
  const short = plan.digest.slice(0, DIGEST_TYPED);
  const done = await ask(`Restore to position ${plan.target}`, [
    h("p", {}, `${counted(plan.steps.length, "object")} of the plan `, h("code", {}, plan.digest)),
    field("Type the beginning of the plan's digest", typed, `It is ${short}. The plan is carried out as it was shown, or not at all.`),
  ], {submit: "Restore", danger: true, onsubmit: async (reason, said, insisted) => {
    const text = typed.value.trim();
    if (text.length < DIGEST_TYPED || !plan.digest.startsWith(text)) {
      fill(said, note(`That is not the digest of this plan: type ${short}`, "bad"));
      return undefined;
    }
    // A time ago is another position by now, and that would be another plan.
    const body = {...wanted, at: String(plan.target), apply: true, planDigest: plan.digest, reason, ...insisted};
    return (await request("POST", "/restore", {body})).data;
  }});
  if (done) fill(place, carried(done));
}

function carried(done) {
  say(`Restored, at position ${done.seq}.`);
  return h("div", {class: "note good"}, h("p", {}, `Restored: recorded at position ${done.seq}.`),
    h("p", {}, h("a", {href: "#/history"}, "History"), ` shows it, and takes it back: undo ${done.id || done.seq}.`));
}

// --- what was deleted ------------------------------------------------------------------------

async function deletedTable(signal) {
  const {items} = await get("/events", {type: DELETED, limit: DELETED_MAX}, signal);
  const newest = [...new Map(items.toReversed().map(one => [one.object, one])).values()].reverse();
  const known = newest.filter(one => objectOf(one.object));
  const isGone = await Promise.all(known.map(one => isMissing(objectOf(one.object), signal)));
  const gone = known.filter((_, i) => isGone[i]);
  if (!gone.length) return empty("Nothing that was deleted lately is missing now.", h("p", {}, "What was deleted before can be brought back by the form above."));
  return table([
    {title: "Object", cell: one => objectLink(one.object)},
    {title: "Deleted", cell: one => when(one.time)},
    {title: "By", cell: one => one.actor},
    {title: "Reason", cell: one => one.reason},
    {title: "", cell: one => button("Bring back", async () => {
      if (await bringBack(objectOf(one.object), one)) dispatchEvent(new HashChangeEvent("hashchange"));
    }, {"aria-label": `Bring back ${one.object}`})},
  ], gone, {about: "Deleted objects"});
}

async function isMissing(where, signal) {
  try {
    await get(objectPath(where), {}, signal);
    return false;
  } catch (failure) {
    return failure.code === 404;
  }
}

/** Bring an object back to before it was deleted, a zone with its records. */
export async function bringBack(where, event) {
  const object = `${where.kind}/${where.namespace === "-" ? "" : `${where.namespace}/`}${where.name}`;
  const title = `Bring back ${where.name}`;
  let wanted, plan;
  try {
    event ||= (await get("/events", {kind: where.kind, name: where.name, type: DELETED, limit: 1,
      namespace: where.namespace === "-" ? "" : where.namespace})).items[0];
    if (!event) throw fault("the log does not know that it was ever deleted");
    const scope = where.kind === "dnszones" ? {zone: where.name} : {objects: [object]};
    wanted = {beforeEvent: event.seq, scope};
    plan = (await request("POST", "/restore", {body: wanted})).data.plan;
  } catch (failure) {
    await ask(title, [failureBox(failure)], {submit: "Close", withReason: false, onsubmit: async () => true});
    return false;
  }
  const done = await ask(title, [h("p", {}, `As it was before position ${event.seq}, where it was deleted:`), planBox(plan)], {
    submit: "Bring back", wide: true,
    onsubmit: async (reason, said, insisted) => (await request("POST", "/restore", {
      body: {...wanted, apply: true, planDigest: plan.digest, reason, ...insisted}})).data,
  });
  if (done) say(`${where.name} is there again.`);
  return Boolean(done);
}

// --- marks -----------------------------------------------------------------------------------

async function readMarks(list, signal) {
  const {items} = await get("/events", {type: "audit.marked.v1", limit: 20}, signal);
  fill(list, items.map(one => h("option", {value: `mark:${one.object.split("/").at(-1)}`, label: one.reason || one.time})));
}

async function mark() {
  const name = h("input", {type: "text", name: "mark", required: true, placeholder: "before-the-move", spellcheck: "false"});
  const done = await ask("Mark this moment", [field("Name", name, "Given once; a restore goes back to it as mark:NAME.")], {
    submit: "Mark", onsubmit: async reason => (await request("POST", "/marks", {body: {name: name.value.trim(), reason}})).data,
  });
  if (done) {
    say(`Marked, at position ${done.position}.`);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}
