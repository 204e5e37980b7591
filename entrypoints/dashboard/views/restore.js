// Restore: bring objects back to a moment.

import {fill} from "../dom.js";
import {get} from "../api.js";
import {heading, note, table, when} from "../ui.js";

export async function show(root, {signal}) {
  const {items} = await get("/events", {limit: 20, noStatus: "true"}, signal);
  fill(root, heading("Restore", "Bring objects back to how they were."),
    note("The newest changes:"),
    table([
      {title: "Change", cell: one => one.seq},
      {title: "When", cell: one => when(one.time)},
      {title: "What", cell: one => `${one.verb} ${one.object}`},
    ], items, {about: "Changes"}));
}
