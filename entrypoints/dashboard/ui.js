// Parts that every view is made of.

import {h, fill, lines} from "./dom.js";
import {Failure, may, now} from "./api.js";

/** The head of a view: its title, a line about it, and what can be done. */
export function heading(title, about, ...actions) {
  return h("header", {class: "heading"},
    h("div", {}, h("h1", {tabindex: "-1"}, title), about ? h("p", {class: "about"}, about) : null),
    actions.flat().some(Boolean) ? h("div", {class: "actions"}, actions) : null);
}

export function button(text, onclick, given = {}) {
  return h("button", {type: "button", onclick, ...given}, text);
}

/** A box with a title. */
export function card(title, ...children) {
  return h("section", {class: "card"}, title ? h("h2", {}, title) : null, children);
}

/** What to say where there is nothing, and what to do next. */
export function empty(text, ...next) {
  return h("div", {class: "empty"}, h("p", {}, text), next);
}

export const badge = (text, kind = "") => h("span", {class: `badge ${kind}`}, text);

export const note = (text, kind = "") => h("p", {class: `note ${kind}`, role: "status"}, text);

/** Why something was refused: all of it, each fault with its place. */
export function failureBox(failure) {
  if (!(failure instanceof Failure)) console.error(failure);
  const causes = failure.causes || [];
  return h("div", {class: "note bad", role: "alert"},
    h("p", {}, failure.reason ? h("strong", {}, `${failure.reason}: `) : null, headOf(failure)),
    causes.length ? h("ul", {}, causes.map(cause =>
      h("li", {}, cause.field ? [h("code", {}, cause.field), ": "] : null, cause.message))) : null);
}

/** The message without the faults, which stand below it. */
export function headOf({message, causes = []}) {
  const [first, ...rest] = message.split("\n");
  const only = causes.length === 1 ? `${causes[0].field}: ${causes[0].message}` : "";
  const head = only && first.endsWith(only) ? `${first.slice(0, -only.length)}1 fault` : first;
  return causes.length ? head : [head, rest.map(line => [h("br"), line])];
}

/**
 * A table. Columns are {title, cell: row => child, class}; on a phone each row is a block, and its
 * cells bear the titles, unless it is `short`.
 */
export function table(columns, rows, {about = "", onRow, short = false} = {}) {
  const body = h("tbody", {}, rows.map(row => rowOf(columns, row, onRow)));
  return h("table", {"aria-label": about || null, class: short ? "short" : null},
    h("thead", {}, h("tr", {}, columns.map(one => h("th", {scope: "col", class: one.class || null}, one.title)))),
    body);
}

export function rowOf(columns, row, onRow) {
  const made = h("tr", {}, columns.map(one =>
    h("td", {"data-title": one.title || null, class: one.class || null}, one.cell(row))));
  if (onRow) onRow(made, row);
  return made;
}

let fields = 0;

/** A labelled input, select or textarea; `control` is made by `h`. */
export function field(label, control, hint = "") {
  control.id ||= `field-${++fields}`;
  const about = hint ? h("small", {id: `${control.id}-hint`}, hint) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return h("div", {class: "field"}, h("label", {for: control.id}, label), control, about);
}

export function select(options, value, given = {}) {
  return h("select", given, options.map(one => {
    const [text, key] = Array.isArray(one) ? one : [one, one];
    return h("option", {value: key, selected: key === value}, text);
  }));
}

/** The optional reason of a change, which goes into the log. */
function reasonInput() {
  return h("input", {type: "text", name: "reason", autocomplete: "off", maxlength: 1024});
}

const reasonField = control =>
  field("Reason (optional)", control, "Kept in the log with this change, for whoever reads it later.");

/**
 * A form in a dialog. `parts` are its fields; `onsubmit(reason, said, insisted)` does it, and what it
 * raises is shown in the dialog, which stays; also where it resolves to undefined, since it wants more,
 * and says so in the element `said`. `insisted` has the parameters {force, allowMassChange} that
 * somebody agreed to who was refused without. Resolves to what `onsubmit` resolved to, or undefined
 * when the dialog was left.
 */
export function ask(title, parts, {submit = "Save", danger = false, onsubmit, withReason = true, wide = false}) {
  return new Promise(resolve => {
    let outcome;
    const said = h("div", {}), reason = reasonInput(), insist = insisting();
    const go = h("button", {type: "submit", class: danger ? "danger" : "primary"}, submit);
    const form = h("form", {onsubmit: async event => {
      event.preventDefault();
      go.disabled = true;
      fill(said);
      try {
        outcome = await onsubmit(reason.value.trim(), said, insist.given());
        if (outcome === undefined) return;  // it wants more
        dialog.close();
      } catch (failure) {
        fill(said, failureBox(failure));
        insist.offer(failure);
      } finally {
        go.disabled = false;
      }
    }},
    h("h2", {id: "asked"}, title), parts, withReason ? reasonField(reason) : null, said, insist.place,
    h("div", {class: "actions"}, go, button("Cancel", () => dialog.close())));
    const dialog = h("dialog", {class: wide ? "wide" : null, "aria-labelledby": "asked", onclose: () => { dialog.remove(); resolve(outcome); }}, form);
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** What somebody may agree to who was refused, as a check box. */
function insisting() {
  const place = h("div", {}), box = h("input", {type: "checkbox", id: "insist"});
  let name = "";
  return {
    place,
    given: () => name && box.checked ? {[name]: true} : {},
    offer: ({reason, details}) => {
      const text = reason === "ManagedBy" && may("objects.force") ? `Take it over from ${details.owner}`
        : reason === "MassChange" ? "Do it although it changes so much" : "";
      name = text ? (reason === "ManagedBy" ? "force" : "allowMassChange") : "";
      fill(place, text ? h("div", {class: "check"}, box, h("label", {for: "insist"}, text)) : null);
    },
  };
}

/** Something that was done, said for some seconds at the foot of the page. */
export function say(text, kind = "good") {
  const place = document.getElementById("said");
  const one = h("p", {class: `said ${kind}`}, text);
  place.append(one);
  setTimeout(() => one.remove(), 8000);
}

const AGES_MS = 5000;
const AGES = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** A moment (ISO text, or seconds) as its age, with the whole of it as title. */
export function when(moment) {
  if (!moment) return h("span", {class: "quiet"}, "never");
  const at = typeof moment === "number" ? new Date(moment * 1000) : new Date(moment);
  if (Number.isNaN(at.valueOf())) return h("span", {}, moment);
  return h("time", {datetime: at.toISOString(), title: at.toLocaleString()}, age(at));
}

const age = at => ago((now() - at) / 1000);

// A page stays open for long, and what is drawn once has grown older.
setInterval(() => {
  if (document.hidden) return;
  for (const one of document.querySelectorAll("time")) {
    const text = age(Date.parse(one.dateTime));
    if (one.textContent !== text) one.textContent = text;
  }
}, AGES_MS);

function ago(seconds) {
  const [size, unit] = AGES.find(([size]) => Math.abs(seconds) >= size) || [1, "s"];
  const count = Math.round(Math.abs(seconds) / size);
  if (count === 0) return "now";
  return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
}

export const number = value => Number(value).toLocaleString("en-US");

export const counted = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

/** An object of the API, to be read: JSON, indented. */
export const document_ = value => lines(JSON.stringify(value, null, 2), {class: "document"});
