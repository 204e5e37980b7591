// What people do with names: why one is answered as it is, and rules of policies.

import {h, fill} from "./dom.js";
import {ask as request, get, homeNamespace, may, part} from "./api.js";
import {ask, field, note, say, select} from "./ui.js";

const ACTIONS = {block: "blocked", rewrite: "rewritten", pass: "passed on"};
const REASONS = {
  "none": "nothing names it",
  "bypass": "the client's policy bypasses filtering",
  "paused": "blocking is paused for the client",
  "rewrite": "a policy rewrites it",
  "important-allow": "an $important rule of a list allows it",
  "important-deny": "an $important rule of a list denies it",
  "policy-allow": "a policy allows it",
  "policy-deny": "a policy denies it",
  "blocked-type": "a policy blocks the type",
  "list-allow": "a list allows it",
  "list-deny": "a list denies it",
  "safe-search": "safe search",
};

/** An explanation in words, as the command line says it. */
function explained(found) {
  const rows = [
    ["rule", found.line ? `${found.rule} (line ${found.line})` : found.rule],
    ["list", found.source ? `${found.list} (${found.source})` : found.list],
    ["policy", found.policy],
    ["groups", found.groups.join(", ")],
    ["policies that apply", found.policies.join(", ")],
    ["upstreams", found.upstreams.join(", ")],
  ].filter(([, value]) => value);
  return h("div", {class: "explained"},
    h("p", {}, h("strong", {}, verdict(found))),
    h("dl", {}, rows.map(([word, value]) => [h("dt", {}, word), h("dd", {}, value)])));
}

function verdict(found) {
  const asked = `${found.name} ${found.type} for ${found.client}: `;
  if (found.answeredBy === "zone") return `${asked}answered from the zone ${found.zone}; policies have no say over local zones`;
  if (found.answeredBy === "special") return `${asked}answered here: it is a special name, which goes to no upstream`;
  if (found.answeredBy === "nobody") return `${asked}refused: ${REASONS[found.reason] ?? found.reason}, and ${found.refusal}`;
  return `${asked}${ACTIONS[found.action] ?? found.action}: ${REASONS[found.reason] ?? found.reason}`;
}

const bare = name => name.replace(/(.)\.$/, "$1");

/** "namespace/name" as the path of an object of a kind. */
function pathOf(plural, full) {
  const [namespace, name] = full.includes("/") ? full.split("/", 2) : ["default", full];
  return `/namespaces/${part(namespace)}/${plural}/${part(name)}`;
}

const newPolicy = () => `${homeNamespace()}/house-rules`;

/**
 * Ask how a name is to be blocked or allowed, and have it done: a rule of a policy. Policies that
 * apply to `client` are offered first. Resolves to true when something was changed.
 */
export async function rule(verb, name, client) {
  const {items} = await get("/policies", {limit: 500});
  const all = items.map(one => `${one.metadata.namespace}/${one.metadata.name}`);
  const applying = client ? await appliedTo(name, client) : [];
  const options = [
    ...applying.map(one => [`${one} (applies to ${client})`, one]),
    ...all.filter(one => !applying.includes(one)).map(one => [one, one]),
  ];
  const made = newPolicy();
  if (!all.includes(made)) options.push([`a new one, ${made}, for clients of no other policy`, made]);
  const given = h("input", {type: "text", value: bare(name), required: true, autocomplete: "off", spellcheck: "false"});
  const below = h("input", {type: "checkbox", id: "below"});
  const policy = select(options, options[0][1]);
  const about = h("div", {});
  const done = await ask(`${verb === "deny" ? "Block" : "Allow"} a name`, [
    field("Name", given),
    h("div", {class: "check"}, below, h("label", {for: "below"}, "Names below it too")),
    field("Policy", policy, "Who it is for: the clients of this policy."), about,
  ], {
    submit: verb === "deny" ? "Block" : "Allow",
    onsubmit: (reason, _said, insisted) =>
      put(policy.value, verb, bare(given.value.trim()), below.checked, {reason, ...insisted}),
  });
  if (done) say(`${done.verb}: ${done.policy}`);
  return Boolean(done);
}

async function appliedTo(name, client) {
  try {
    return (await get("/explain", {name, client})).policies;
  } catch {
    return [];  // the query log may hold a network or a pseudonym in the place of an address
  }
}

/** `query` has the reason, and what was insisted on. */
async function put(full, verb, name, below, query) {
  const path = pathOf("policies", full);
  const {spec, etag} = await current(path, full);
  const other = verb === "deny" ? "allow" : "deny";
  const rules = below ? [name, `*.${name}`] : [name];
  const changed = {
    [verb]: [...new Set([...(spec[verb] || []), ...rules])],
    [other]: (spec[other] || []).filter(one => !rules.includes(one)),
  };
  const done = etag
    ? await request("PATCH", path, {body: {spec: changed}, type: "application/merge-patch+json", ifMatch: etag, query})
    : await request("PUT", path, {body: {spec: changed}, ifNoneMatch: "*", query});
  return {verb: done.verb || "unchanged", policy: full};
}

async function current(path, full) {
  try {
    const found = await request("GET", path);
    return {spec: found.data.spec, etag: found.etag};
  } catch (failure) {
    if (failure.code === 404 && full === newPolicy()) return {spec: {}, etag: null};
    throw failure;
  }
}

/** What to do with a name, as buttons; none for who may not. */
function ruleButtons(name, client, onChanged, button) {
  if (!may("objects.write")) return [];
  const asked = verb => async () => { if (await rule(verb, name, client)) await onChanged(); };
  return [button("Block this name", asked("deny"), {class: "danger"}), button("Allow this name", asked("allow"))];
}

/** Explain into an element, with what can be done about it. */
export async function explainInto(place, asked, button, signal) {
  const found = await get("/explain", asked, signal);
  const again = () => explainInto(place, asked, button, signal);
  const isLocal = found.answeredBy === "zone";
  fill(place, explained(found),
    isLocal ? note("Block and allow rules do not count for names of zones served here.") : null,
    isLocal ? null : h("div", {class: "actions"}, ruleButtons(found.name, asked.client, again, button)));
}
