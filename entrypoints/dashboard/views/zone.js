// One zone: its records, a page at a time, and what can be done with them.

import {fill, h} from "../dom.js";
import {download, get, may, part, who} from "../api.js";
import {badge, button, empty, failureBox, heading, note, rowOf, table, when} from "../ui.js";
import {edit, remove} from "../editing.js";
import {addRecord, deleteRecord, editRecord, placeOf, relative} from "../records.js";
import {counted, isOurs, managerOf, mayWrite, objectHash} from "../changes.js";
import {importZone} from "./zones.js";

const PAGE = 100;
const SHOWN_MAX = 4;  // data of a row; the rest is one click away

const again = () => dispatchEvent(new HashChangeEvent("hashchange"));

export async function show(root, {name, query, signal}) {
  const zone = await get(`/dnszones/${part(name)}`, {}, signal);
  const isPrimary = (zone.spec.type || "Primary") === "Primary";
  const writes = may("objects.write") && isPrimary;
  fill(root,
    h("p", {class: "crumbs"}, h("a", {href: "#/zones"}, "Zones")),
    heading(zone.spec.zoneName, aboutOf(zone), actionsOf(zone, writes)),
    conditionsOf(zone));
  if (zone.spec.type === "Forward") {
    root.append(note(`Queries go to ${zone.spec.forward.upstreams.join(", ")}: the zone has no records here.`));
    return;
  }
  if (!isPrimary) root.append(note("Its records are those of its primaries, and are changed there."));
  const found = recordTable(zone, writes, query.get("search") || "", signal);
  root.append(searchForm(name, query.get("search") || ""), found.element);
  await found.page("");
}

function aboutOf(zone) {
  const status = zone.status || {}, parts = [zone.spec.type || "Primary"];
  if (status.refreshedAt) parts.push(`fetched from ${status.primary}`);
  if (!isOurs(zone)) parts.push(`managed by ${managerOf(zone)}`);
  return [parts.join(" · "), status.refreshedAt ? [" ", when(status.refreshedAt)] : null];
}

function actionsOf(zone, writes) {
  const {name} = zone.metadata;
  const mayEdit = mayWrite(managerOf(zone)) && !who().namespaces.length;
  const isFree = !who().namespaces.length && !who().zones.length;
  return [
    writes ? button("Add a record", async () => { if (await addRecord(zone)) again(); }, {class: "primary"}) : null,
    mayEdit ? button("Settings", async () => { if (await edit(`Settings of ${zone.spec.zoneName}`, "dnszones", zone)) again(); }) : null,
    may("zones.export") && zone.spec.type !== "Forward"
      ? button("Export", () => download(`/dnszones/${part(name)}/export`, {}, `${name}.zone`).catch(failed)) : null,
    writes && isFree ? button("Import", () => importZone(zone.spec.zoneName)) : null,
    may("history") ? h("a", {class: "button", href: `#/history?zone=${part(name)}`}, "History") : null,
    may("restore") ? h("a", {class: "button", href: `#/restore?zone=${part(name)}`}, "Restore") : null,
    mayEdit && isFree ? button("Delete", () => deleteZone(zone), {class: "danger"}) : null,
  ];
}

function failed(failure) {
  document.querySelector(".view").prepend(failureBox(failure));
}

async function deleteZone(zone) {
  const about = "It is not answered any more. Its record sets stay, and belong to no zone until there is one of this name again.";
  if (await remove("the zone", "dnszones", zone, about)) location.hash = "#/zones";
}

/** What is wrong with it, as its status says. */
function conditionsOf(zone) {
  const isBad = one => one.status === (["Degraded", "Disabled"].includes(one.type) ? "True" : "False");
  return (zone.status?.conditions || []).filter(isBad).map(one => note(`${one.reason}: ${one.message}`, "warn"));
}

function searchForm(name, text) {
  const search = h("input", {type: "search", name: "search", value: text, placeholder: "part of a name", "aria-label": "Search names",
    spellcheck: "false"});
  return h("form", {class: "search", role: "search", onsubmit: event => {
    event.preventDefault();
    location.hash = `#/zones/${part(name)}${search.value.trim() ? `?search=${part(search.value.trim())}` : ""}`;
  }}, search, h("button", {type: "submit"}, "Search"));
}

// --- the table -------------------------------------------------------------------------------

function recordTable(zone, writes, search, signal) {
  const columns = columnsOf(zone, writes);
  const body = h("div", {}), foot = h("div", {class: "actions"}), element = h("div", {class: "records"}, body, foot);
  let rows = null, shown = 0;
  async function page(after) {
    const path = `/dnszones/${part(zone.metadata.name)}/records`;
    const found = await get(path, {search, limit: PAGE, continue: after}, signal);
    const isBare = !found.items.some(one => one.object) && !found.continue && (search || writes);
    if (!rows && isBare) foot.before(nothing(zone, writes, search));
    if (!found.items.length) return;
    if (!rows) {
      const made = table(columns, found.items, {about: `Records of ${zone.spec.zoneName}`});
      rows = made.querySelector("tbody");
      fill(body, made);
    } else rows.append(...found.items.map(one => rowOf(columns, one)));
    shown += found.items.reduce((sum, row) => sum + row.targets.length, 0);
    fill(foot, h("span", {class: "quiet"}, found.continue
      ? `The first ${counted(shown, "record")}; ${counted(found.names, "name")} in all` : counted(shown, "record")),
      found.continue ? button("More records", async () => {
        try { await page(found.continue); } catch (failure) { foot.append(failureBox(failure)); }
      }) : null);
  }
  return {element, page};
}

function nothing(zone, writes, search) {
  if (search) return empty(`No name of ${zone.spec.zoneName} has “${search}” in it.`, h("a", {href: `#/zones/${part(zone.metadata.name)}`}, "Show all"));
  return empty("There are no records yet.", writes ? h("p", {}, "Add one, and it is in the next answer.") : null);
}

function columnsOf(zone, writes) {
  return [
    {title: "Name", class: "mono", cell: row => relative(row.dnsName, zone.spec.zoneName)},
    {title: "Type", cell: row => badge(row.recordType)},
    {title: "TTL", class: "number", cell: row => row.recordTTL ?? h("span", {class: "quiet", title: "the zone's"}, zone.spec.defaultTTL ?? 300)},
    {title: "Data", class: "mono data", cell: row => h("div", {}, dataOf(row), marksOf(row))},
    {title: "", class: "do", cell: row => doingOf(zone, row, writes)},
  ];
}

function dataOf(row) {
  const rest = row.targets.slice(SHOWN_MAX).map(one => h("div", {}, one));
  return [row.targets.slice(0, SHOWN_MAX).map(one => h("div", {}, one)),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} more`), rest) : null];
}

function marksOf(row) {
  return [
    row.disabled ? badge("switched off", "warn") : null,
    row.expiresAt ? badge(`until ${row.expiresAt}`, "warn") : null,
    row.setIdentifier ? badge(row.setIdentifier) : null,
    row.manager && row.manager !== "kudurru" ? badge(`managed by ${row.manager}`) : null,
  ];
}

function doingOf(zone, row, writes) {
  if (!row.object) return null;
  const label = `${relative(row.dnsName, zone.spec.zoneName)} ${row.recordType}`;
  const canWrite = writes && mayWrite(row.manager);
  const doing = (word, change) => button(word, async () => {
    try { if (await change(zone, row)) again(); } catch (failure) { failed(failure); }
  }, {class: "plain", "aria-label": `${word} ${label}`});
  return h("div", {class: "row-actions"},
    canWrite ? [doing("Edit", editRecord), doing("Delete", deleteRecord)] : null,
    may("history") ? h("a", {href: objectHash(placeOf(row)), "aria-label": `History of ${label}`}, "History") : null);
}
