// One zone: its record sets.

import {fill, h} from "../dom.js";
import {get, part} from "../api.js";
import {heading, document_} from "../ui.js";

export async function show(root, {name, signal}) {
  const zone = await get(`/dnszones/${part(name)}`, {}, signal);
  fill(root, heading(zone.spec.zoneName, null, h("a", {href: "#/zones"}, "All zones")), document_(zone));
}
