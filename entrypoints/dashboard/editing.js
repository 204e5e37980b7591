// An object as text (JSON), checked by the server before it is applied, its faults shown at their
// places.

import {h, fill} from "./dom.js";
import {ask as request, fault, homeNamespace, part} from "./api.js";
import {changeLines, differences, movedBox, objectPath, written} from "./changes.js";
import {ask, field, headOf, note, say} from "./ui.js";

const OURS = "kudurru.io/managed-by";

/**
 * Edit an object, or make one of a namespaced kind where `object` is null and `template` is its spec.
 * The first submission is a dry run and shows what would change, the second does it. Resolves to true when it was applied.
 */
export async function edit(title, plural, object, template = {}) {
  const meta = object ? object.metadata : {namespace: homeNamespace(), name: ""};
  const etag = object ? `"${meta.resourceVersion}"` : null;
  const text = h("textarea", {value: JSON.stringify(object ? object.spec : template, null, 2), spellcheck: "false", rows: 12});
  const name = object ? null : h("input", {type: "text", required: true, autocomplete: "off", spellcheck: "false"});
  let checked = null;
  const done = await ask(title, [name ? field("Name", name) : null, field("spec", text)], {
    submit: "Check, then apply", wide: true,
    onsubmit: async (reason, said, insisted) => {
      const where = {kind: plural, namespace: meta.namespace || "-", name: object ? meta.name : name.value.trim()};
      const path = objectPath(where);
      const body = bodyOf(meta, text.value);
      const how = {body, ifMatch: etag, ifNoneMatch: object ? null : "*"};
      try {
        if (checked !== path + body) {
          const dry = await request("PUT", path, {...how, query: {dryRun: true, ...insisted}});
          checked = path + body;
          fill(said, note(`Nothing is wrong with it; it would be ${dry.verb || "unchanged"}. Submit again to apply it.`, "good"),
            object ? changeLines(differences(written(object).spec, JSON.parse(text.value), "spec")) : null,
            dry.warnings.map(one => note(one, "warn")));
          return undefined;
        }
        return await request("PUT", path, {...how, query: {reason, ...insisted}});
      } catch (failure) {
        checked = null;
        if (failure.code === 412 && object) {
          fill(said, await movedBox(where, failure));
          return undefined;
        }
        if (failure.causes?.length && failure.reason !== "ManagedBy") return faults(said, failure, text);
        throw failure;
      }
    },
  });
  if (done) {
    say(`${meta.name || name.value}: ${done.verb || "unchanged"}`);
    done.warnings.forEach(one => say(one, "warn"));
  }
  return Boolean(done);
}

/** The spec as it was written, so that the server sees what a parser here would overlook. */
function bodyOf(meta, spec) {
  try {
    JSON.parse(spec);
  } catch (error) {
    throw fault(`the text is no JSON: ${error.message}`);
  }
  const annotations = {...meta.annotations};
  delete annotations[OURS];
  return `{"metadata":${JSON.stringify({labels: meta.labels, annotations})},"spec":${spec}}`;
}

/** Each fault with a way to its place; the first is gone to. */
function faults(said, failure, text) {
  const places = placesOf(text.value);
  const go = ([from, to]) => { text.focus(); text.setSelectionRange(from, to); };
  const found = failure.causes.map(cause => ({...cause, place: placeOf(places, cause.field)}));
  fill(said, h("div", {class: "note bad", role: "alert"}, h("p", {}, headOf(failure)),
    h("ul", {}, found.map(one => h("li", {},
      one.place ? h("button", {type: "button", class: "plain", onclick: () => go(one.place)}, one.field) : h("code", {}, one.field),
      ": ", one.message)))));
  const first = found.find(one => one.place);
  if (first) go(first.place);
  return undefined;
}

/** The place of a field, or of what it is part of: a field that is missing has none. */
function placeOf(places, name) {
  for (let at = name; at; at = at.replace(/(\.[^.[]*|\[\d+\])$/, "")) {
    if (places.has(at)) return places.get(at);
    if (!/[.[]/.test(at)) return undefined;
  }
  return undefined;
}

/** Where each value of a JSON text is, by path: "spec.deny[2]" → [from, to]. The text is valid. */
function placesOf(text, root = "spec") {
  const tokens = [...text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\]:,]|[^\s{}[\]:,"]+/g)];
  const places = new Map();
  let at = 0;

  function value(path) {
    const from = tokens[at].index;
    const opened = tokens[at++][0];
    if (opened === "{") members(path);
    else if (opened === "[") elements(path);
    const last = tokens[at - 1];
    places.set(path, [from, last.index + last[0].length]);
  }

  function members(path) {
    while (tokens[at][0] !== "}") {
      const name = JSON.parse(tokens[at][0]);
      at += 2;
      value(`${path}.${name}`);
      if (tokens[at][0] === ",") at++;
    }
    at++;
  }

  function elements(path) {
    for (let i = 0; tokens[at][0] !== "]"; i++) {
      value(`${path}[${i}]`);
      if (tokens[at][0] === ",") at++;
    }
    at++;
  }

  if (tokens.length) value(root);
  return places;
}

/** Delete an object, after a question. Resolves to true when it is gone. */
export async function remove(what, plural, object, about = "") {
  const {namespace = "-", name, resourceVersion} = object.metadata;
  const done = await ask(`Remove ${what} ${name}?`, [
    about ? note(about) : null,
    h("p", {}, "The log keeps it, so it can be restored."),
  ], {
    submit: "Remove", danger: true,
    onsubmit: (reason, _said, insisted) => request("DELETE", objectPath({kind: plural, namespace, name}),
      {query: {reason, ...insisted}, ifMatch: `"${resourceVersion}"`}),
  });
  if (done) say(done.data.message);
  return Boolean(done);
}

const ENABLED = "kudurru.io/enabled";

/** Whether an object counts, by its annotation. */
export const isEnabled = object => object.metadata.annotations?.[ENABLED] !== "false";

/** Switch an object off or on, by its annotation, which belongs to people. */
export async function toggle(what, plural, object) {
  const {namespace, name} = object.metadata;
  const on = isEnabled(object);
  const body = {metadata: {annotations: {[ENABLED]: on ? "false" : null}}};
  const done = await ask(`Switch ${what} ${name} ${on ? "off" : "on"}?`, [], {
    submit: on ? "Switch off" : "Switch on",
    onsubmit: (reason, _said, insisted) => request("PATCH", `/namespaces/${part(namespace)}/${plural}/${part(name)}`,
      {body, type: "application/merge-patch+json", query: {reason, ...insisted}}),
  });
  if (done) say(`${name} is switched ${on ? "off" : "on"}`);
  return Boolean(done);
}

