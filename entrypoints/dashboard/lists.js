// Adding a block list: the list, and the policy that makes it count, in one change.

import {h} from "./dom.js";
import {ask as request, fault, get, homeNamespace, part} from "./api.js";
import {ask, field, say, select} from "./ui.js";

const API = "kudurru.io/v1alpha1";
const NEW = "house-rules";

/** Ask for a URL and who it is for, and have both applied. Resolves to true when it was done. */
export async function addList(lists, policies) {
  const url = h("input", {type: "url", required: true, placeholder: "https://…", autocomplete: "off", spellcheck: "false"});
  const name = h("input", {type: "text", required: true, autocomplete: "off", spellcheck: "false"});
  url.addEventListener("change", () => { name.value ||= nameFrom(url.value); });
  const kind = select([["blocks what it names", "deny"], ["allows what it names", "allow"]], "deny");
  const policy = select(choices(policies), choices(policies)[0][1]);
  const done = await ask("Add a list", [
    field("URL", url, "Hosts files, domains, adblock, dnsmasq, RPZ: the format is found out."),
    field("Name", name, "Small letters, digits and hyphens."),
    field("It", kind),
    field("Counts for", policy, "A list does nothing until a policy names it."),
  ], {
    submit: "Add",
    onsubmit: (reason, _said, insisted) => apply(
      {url: url.value.trim(), name: name.value.trim(), kind: kind.value}, lists, policy.value, reason, insisted),
  });
  if (done) say(`${name.value} is subscribed to; it is fetched now`);
  return Boolean(done);
}

function choices(policies) {
  const found = policies.map(one => {
    const {namespace, name} = one.metadata;
    const groups = one.spec.clientGroupRefs || [];
    return [`${name}: ${groups.length ? groups.join(", ") : "clients of no other policy"}`, `${namespace}/${name}`];
  });
  const made = `${homeNamespace()}/${NEW}`;
  if (!found.some(([, full]) => full === made)) found.push([`a new policy ${NEW}: clients of no other policy`, made]);
  return [...found, ["nobody yet", ""]];
}

async function apply({url, name, kind}, lists, policy, reason, insisted) {
  const home = homeNamespace();
  if (lists.some(one => one.metadata.namespace === home && one.metadata.name === name)) {
    throw fault(`there is a list ${name} already; give this one another name`);
  }
  const list = {apiVersion: API, kind: "BlockList", metadata: {name, namespace: home}, spec: {sources: [{url}], kind}};
  const objects = policy ? [list, await withList(policy, name)] : [list];
  const body = {apply: objects, reason, isVersioned: true, ...insisted};
  return request("POST", "/batch", {body});
}

/** The policy as it is now, with the list; of a version, so that nobody's change is lost. */
async function withList(full, list) {
  const [namespace, name] = full.split("/", 2);
  const ref = namespace === homeNamespace() ? list : `${homeNamespace()}/${list}`;
  try {
    const found = await get(`/namespaces/${part(namespace)}/policies/${part(name)}`);
    const {metadata: {labels, annotations = {}, resourceVersion}, spec} = found;
    const {"kudurru.io/managed-by": _ours, ...kept} = annotations;
    return {
      apiVersion: API, kind: "Policy",
      metadata: {name, namespace, resourceVersion, ...(labels && {labels}), annotations: kept},
      spec: {...spec, blockListRefs: [...(spec.blockListRefs || []), ref]},
    };
  } catch (failure) {
    if (failure.code !== 404) throw failure;
    return {apiVersion: API, kind: "Policy", metadata: {name, namespace}, spec: {blockListRefs: [ref]}};
  }
}

function nameFrom(url) {
  const found = /^https?:\/\/(?:www\.)?([^/?#:]+)/i.exec(url);
  return found ? found[1].toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 63) : "";
}
