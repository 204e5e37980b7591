// Elements. Text from outside only ever becomes a text node or an attribute that holds text, and is
// escaped as the command line escapes it: nothing moves a cursor or turns the direction of writing.

const UNSEEN = /[\p{C}\p{Z}]/gu;
const TEXTS = new Set(["title", "placeholder", "aria-label", "alt", "label"]);
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate", "open"]);

/** Text as it may be shown: `\xNN` and `\uNNNN` for what cannot be seen. */
export function escape(text) {
  return String(text).replace(UNSEEN, one => one === " " ? one : escaped(one.codePointAt(0)));
}

function escaped(code) {
  return code < 256 ? "\\x" + code.toString(16).padStart(2, "0")
    : "\\u" + code.toString(16).padStart(4, "0");
}

/**
 * An element. `given` holds attributes, listeners (`onclick: function`), and `style: {property:
 * value}`; what is false, null or undefined is left out. Children are elements, texts, lists of
 * them, or nothing.
 */
export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) set(element, name, value);
  add(element, children);
  return element;
}

function set(element, name, value) {
  if (value === false || value === null || value === undefined) return;
  if (name.startsWith("on")) {
    if (typeof value !== "function") throw new TypeError(`${name} is no function`);
    element.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
  } else if (name === "href") {
    // A link goes to a place in this page: whatever follows the #, it leads nowhere else.
    if (!value.startsWith("#")) throw new TypeError("a link leads elsewhere");
    element.setAttribute(name, value);
  } else if (PROPERTIES.has(name)) {
    element[name] = value;
  } else {
    element.setAttribute(name, value === true ? "" : TEXTS.has(name) ? escape(value) : value);
  }
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(escape(child)));
  }
}

/** Put these children in place of what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Text of several lines, each escaped. */
export function lines(text, given = {}) {
  const rows = String(text).split("\n");
  return h("pre", given, rows.map((row, i) => [row, i < rows.length - 1 ? h("br") : null]));
}
