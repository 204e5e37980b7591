// History: who changed what, when and why.

import {fill} from "../dom.js";
import {get} from "../api.js";
import {empty, heading, table, when} from "../ui.js";

export async function show(root, {signal}) {
  const {items} = await get("/events", {limit: 100, noStatus: "true"}, signal);
  fill(root, heading("History", "Every change, newest first."),
    items.length ? table([
      {title: "Change", cell: one => one.seq},
      {title: "When", cell: one => when(one.time)},
      {title: "Who", cell: one => one.actor},
      {title: "What", cell: one => `${one.verb} ${one.object}`},
      {title: "Reason", cell: one => one.reason || ""},
    ], items, {about: "Changes"}) : empty("Nothing was changed yet."));
}
