// Overview: whether this node answers.

import {fill, h} from "../dom.js";
import {readiness} from "../api.js";
import {badge, card, heading} from "../ui.js";

export async function show(root, {signal}) {
  const found = await readiness(signal);
  fill(root, heading("Overview"), card("DNS",
    h("p", {}, found.ready ? badge("answers", "good") : badge("does not answer", "bad")),
    found.reasons.map(reason => h("p", {}, reason))));
}
