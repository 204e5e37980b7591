// Zones: which there are.

import {fill, h} from "../dom.js";
import {get, part} from "../api.js";
import {empty, heading, table} from "../ui.js";

export async function show(root, {signal}) {
  const {items} = await get("/dnszones", {limit: 500}, signal);
  fill(root, heading("Zones", "What this node is an authority for."),
    items.length ? table([
      {title: "Zone", cell: one => h("a", {href: `#/zones/${part(one.metadata.name)}`}, one.spec.zoneName)},
      {title: "Kind", cell: one => one.spec.type || "Primary"},
      {title: "Serial", cell: one => one.status?.serial ?? ""},
    ], items, {about: "Zones"}) : empty("There is no zone yet."));
}
