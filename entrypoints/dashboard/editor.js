// One object as text: what people write of it, checked by the server before it is applied.

import {h, fill} from "./dom.js";
import {Failure, ask as request} from "./api.js";
import {ask, failureBox, field, say} from "./ui.js";
import {MassChange, changeLines, differences, movedBox, objectPath} from "./changes.js";

const MANAGED_BY = "kudurru.io/managed-by";
const OURS = "kudurru";

export const managerOf = document => document.metadata.annotations?.[MANAGED_BY] || OURS;

/** Whether this page writes it: what others manage they would write again. */
export const isOurs = document => managerOf(document) === OURS;

/** What people write of an object: labels, annotations and spec. */
export function written(document) {
  const {[MANAGED_BY]: manager, ...annotations} = document.metadata.annotations || {};
  const metadata = {};
  if (Object.keys(document.metadata.labels || {}).length) metadata.labels = document.metadata.labels;
  if (Object.keys(annotations).length) metadata.annotations = annotations;
  return {metadata, spec: document.spec};
}

/**
 * Write an object: a dry run first, so that nothing is half done. `etag`: the version that this is a
 * change of; without one it must not be there. Raises Failure.
 */
export async function save(where, document, {etag, reason, allowMassChange = false, dryRun = false}) {
  const given = {body: document, ifMatch: etag, ifNoneMatch: etag ? undefined : "*"};
  const query = {reason, allowMassChange: allowMassChange ? "true" : "", dryRun: dryRun ? "true" : ""};
  return request("PUT", objectPath(where), {...given, query});
}

export async function remove(where, {etag, reason, allowMassChange = false}) {
  const query = {reason, allowMassChange: allowMassChange ? "true" : ""};
  return request("DELETE", objectPath(where), {ifMatch: etag, query});
}

/** Edit an object as JSON. The first submit shows what would change, the second does it. */
export async function editObject(where, title) {
  const {data: now, etag} = await request("GET", objectPath(where));
  const before = written(now);
  const text = h("textarea", {rows: "18", spellcheck: "false", value: JSON.stringify(before, null, 2)});
  const preview = h("div", {}), guard = new MassChange();
  let agreed = null;
  const done = await ask(title, [
    field("Labels, annotations and spec, as JSON", text, "Saving shows first what would change."), preview, guard.element,
  ], {wide: true, submit: "Save", onsubmit: async (reason, said) => {
    const wanted = parsed(text.value, said);
    if (wanted === undefined) return undefined;
    try {
      if (agreed !== text.value) {
        await save(where, wanted, {etag, dryRun: true, allowMassChange: true});
        fill(preview, h("h3", {}, "This would change"), changeLines(differences(before, wanted)),
          h("p", {class: "quiet"}, "Save again to do it."));
        agreed = text.value;
        return undefined;
      }
      return await guard.watch(() => save(where, wanted, {etag, reason, allowMassChange: guard.isAllowed}));
    } catch (failure) {
      if (failure.code !== 412) throw failure;
      fill(said, await movedBox(where, failure));
      return undefined;
    }
  }});
  if (done) say(`${where.name}: ${done.verb}, at position ${done.position}.`);
  return done;
}

function parsed(text, said) {
  try {
    return JSON.parse(text);
  } catch (error) {
    fill(said, failureBox(new Failure(0, {reason: "Invalid", message: error.message})));
    return undefined;
  }
}

/** Ask whether an object shall go, and delete it. */
export async function deleteObject(where, title, ...about) {
  const {etag} = await request("GET", objectPath(where));
  const guard = new MassChange();
  const done = await ask(title, [about, guard.element], {submit: "Delete", danger: true, onsubmit: async (reason, said) => {
    try {
      return await guard.watch(() => remove(where, {etag, reason, allowMassChange: guard.isAllowed}));
    } catch (failure) {
      if (failure.code !== 412) throw failure;
      fill(said, await movedBox(where, failure));
      return undefined;
    }
  }});
  if (done) say(`${where.name} was deleted. History can bring it back.`);
  return done;
}
