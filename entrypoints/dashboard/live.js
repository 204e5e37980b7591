// What is shown stays as the server has it: asked again now and then, drawn anew where it changed.

import {fill} from "./dom.js";
import {rest} from "./api.js";

const SOON_MS = 1000;

/**
 * Draw what `load()` gives into `place`, now and then again until `signal` aborts. Resolves, once it
 * is there, to a function that looks again at once, and a moment later, when what a change set off
 * (a status, a list that is fetched) is there too.
 */
export async function keptDrawn(place, {load, draw, signal, everyMs}) {
  let before = "", asked = 0;

  async function again() {
    const mine = ++asked;
    const found = await load();
    const text = JSON.stringify(found);
    if (signal.aborted || mine !== asked || text === before) return;
    before = text;
    withFocus(place, () => fill(place, draw(found)));
  }

  await again();
  goOn(again, place, signal, everyMs);
  return async () => {
    await again();
    setTimeout(() => again().catch(() => {}), SOON_MS);
  };
}

async function goOn(again, place, signal, everyMs) {
  for (;;) {
    await rest(everyMs, signal);
    if (signal.aborted) return;
    // Not while nobody looks, nor under a finger that presses a button, nor below a dialog.
    if (document.hidden || document.querySelector("dialog") || place.querySelector(":active")) continue;
    await again().catch(() => {});  // a server that restarts is asked again
  }
}

/** What had the focus, and what was unfolded, is so again after it was drawn anew. */
function withFocus(place, draw) {
  const focused = keyOf(place, document.activeElement);
  const open = [...place.querySelectorAll("details[open] > summary")].map(one => keyOf(place, one));
  draw();
  for (const key of open) {
    const summary = found(place, key);
    if (summary) summary.parentElement.open = true;
  }
  if (focused) found(place, focused)?.focus({preventScroll: true});
}

const alike = (place, tag, text) => [...place.querySelectorAll(tag)].filter(one => one.textContent === text);

function keyOf(place, element) {
  if (!element || !place.contains(element)) return null;
  const [tag, text] = [element.localName, element.textContent];
  return {tag, text, index: alike(place, tag, text).indexOf(element)};
}

function found(place, {tag, text, index}) {
  const all = alike(place, tag, text);
  return all[index] || all.at(-1);
}
