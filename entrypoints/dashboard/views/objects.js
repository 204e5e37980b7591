// Any one object: as it is or was, who changed it, and going back. The namespace is "-" where the
// kind has none.

import {fill, h} from "../dom.js";
import {get, may, part} from "../api.js";
import {button, card, document_, empty, failureBox, heading, note} from "../ui.js";
import {changeLines, differences, eventList, managerOf, mayWrite, objectHash, objectPath, written} from "../changes.js";
import {edit, remove} from "../editing.js";
import {bringBack} from "./restore.js";

const KINDS = {dnszones: "DNSZone", dnsrecordsets: "DNSRecordSet", blocklists: "BlockList", clientgroups: "ClientGroup", policies: "Policy"};

const again = () => dispatchEvent(new HashChangeEvent("hashchange"));

export async function show(root, {kind, namespace, name, query, signal}) {
  const where = {kind, namespace, name}, at = query.get("at") || "";
  const now = await found(where, {}, signal);
  fill(root, crumbs(where, now),
    heading(name, `${KINDS[kind] || kind}${namespace === "-" ? "" : ` in ${namespace}`}${now ? `, managed by ${managerOf(now)}` : ""}`,
      actionsOf(where, now)));
  if (!now) root.append(gone(where));
  root.append(timeForm(where, at));
  if (at) root.append(await asItWas(where, at, now, signal));
  else if (now) root.append(card("As it is now", document_(now)));
  if (!may("history")) return;
  const query_ = {kind, name, noStatus: "true", ...(namespace === "-" ? {} : {namespace})};
  const {element} = await eventList(query_, signal, {nothing: "Nothing of it is in the log."});
  root.append(card("History", element));
}

async function found(where, query, signal) {
  try {
    return await get(objectPath(where), query, signal);
  } catch (failure) {
    if (failure.code === 404) return null;
    throw failure;
  }
}

function crumbs(where, now) {
  if (where.kind === "dnszones") return h("p", {class: "crumbs"}, h("a", {href: `#/zones/${part(where.name)}`}, "Its records"));
  const zone = now?.spec?.zoneRef?.name;
  return zone ? h("p", {class: "crumbs"}, h("a", {href: `#/zones/${part(zone)}`}, `Zone ${zone}`)) : null;
}

function actionsOf(where, now) {
  if (!now || !mayWrite(managerOf(now))) return [];
  return [
    button("Edit", async () => { if (await edit(`Edit ${where.name}`, where.kind, now)) again(); }),
    button("Delete", async () => { if (await remove(KINDS[where.kind] || "", where.kind, now)) again(); }, {class: "danger"}),
  ];
}

/** It is not there: it may have been. */
function gone(where) {
  return empty("It is not there now.", may("restore")
    ? h("div", {class: "actions centred"}, button("Bring it back", async () => { if (await bringBack(where)) again(); })) : null);
}

function timeForm(where, at) {
  const moment = h("input", {type: "text", name: "at", value: at, placeholder: "2h ago, 2027-01-31T12:00:00Z, a position", "aria-label": "As it was at",
    spellcheck: "false"});
  const go = text => { location.hash = text ? `${objectHash(where)}?at=${part(text)}` : objectHash(where); };
  return h("form", {class: "search", onsubmit: event => { event.preventDefault(); go(moment.value.trim()); }},
    moment, h("button", {type: "submit"}, "As it was then"), at ? button("As it is now", () => go("")) : null);
}

async function asItWas(where, at, now, signal) {
  let then;
  try {
    then = await found(where, {at}, signal);
  } catch (failure) {
    if (signal.aborted) throw failure;
    return failureBox(failure);
  }
  if (!then) return card(`At ${at}`, note("It was not there then."));
  const since = differences(written(then), now ? written(now) : {});
  return h("div", {class: "cards"}, card(`As it was at ${at}`, document_(then)),
    card("What changed since", since.length ? changeLines(since) : note("Nothing: it is the same now.")));
}
