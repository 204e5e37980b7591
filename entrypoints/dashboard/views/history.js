// History: who changed what, when and why, newest first; and whether the log is what was written.

import {fill, h} from "../dom.js";
import {download, get, may} from "../api.js";
import {ask, badge, button, card, failureBox, field, heading, note, number, select} from "../ui.js";
import {counted, eventList} from "../changes.js";

const TYPES = [
  ["Changes and access", ""], ["Deleted objects", "obj.deleted.v1"], ["Statuses", "obj.status.v1"], ["Tokens from new places", "auth.login.v1"],
  ["Refused access", "auth.denied.v1"], ["What people fetched", "auth.acted.v1"], ["Settings", "settings.changed.v1"],
  ["Pauses of blocking", "blocking.set.v1"], ["Marks", "audit.marked.v1"], ["Restores", "restore.begun.v1"],
];
const KINDS = ["", "DNSZone", "DNSRecordSet", "BlockList", "ClientGroup", "Policy", "APIToken", "TSIGKey"];
const TEXTS = [
  ["zone", "Zone", "example.org"], ["dnsName", "DNS name", "www.example.org"], ["actor", "Who", "token:anna"],
  ["name", "Object name", "with its kind"], ["since", "Not before", "2 days ago"], ["until", "Not after", "1h ago"],
];
const FORMATS = [["jsonl, which kudurru-verify proves", "jsonl"], "csv", "k8s", "cloudevents", "ocsf"];

export async function show(root, {query, signal}) {
  const asked = Object.fromEntries([...query].filter(([, value]) => value));
  const where = h("div", {});
  const live = h("input", {type: "checkbox", name: "live"});
  fill(root, heading("History", "Every change, newest first: who made it, from where, and why.",
    may("audit.export") ? button("Export", () => exportLog(asked)) : null,
    button("Verify", () => fill(where, logCard(signal)))),
  where, filterForm(asked),
  asked.until ? null : h("label", {class: "check"}, live, " Show new ones as they come"));
  const wanted = {...asked, noStatus: asked.type === "obj.status.v1" ? "" : "true"};
  const list = await eventList(wanted, signal);
  live.addEventListener("change", () => list.follow(live.checked));
  root.append(list.element);
}

function filterForm(asked) {
  const controls = TEXTS.map(([name, label, hint]) =>
    field(label, h("input", {type: "text", name, value: asked[name] || "", placeholder: hint, spellcheck: "false"})));
  const kind = select(KINDS.map(one => [one || "any", one]), asked.kind || "", {name: "kind"});
  const type = select(TYPES, asked.type || "", {name: "type"});
  const isSet = Object.keys(asked).length > 0;
  const form = h("form", {onsubmit: event => {
    event.preventDefault();
    const given = [...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value);
    location.hash = `#/history${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  }},
  h("div", {class: "filters"}, field("What", type), field("Kind", kind), controls),
  h("div", {class: "actions"}, h("button", {type: "submit"}, "Filter"), isSet ? h("a", {href: "#/history"}, "Show all") : null));
  return h("details", {class: "card", open: isSet}, h("summary", {}, isSet ? "Filter (set)" : "Filter"), form);
}

async function exportLog(asked) {
  const format = select(FORMATS, "jsonl", {name: "format"});
  const given = ["since", "until", "zone", "actor", "kind"];
  const inputs = Object.fromEntries(given.map(name => [name, h("input", {type: "text", name, value: asked[name] || ""})]));
  await ask("Export the log", [
    field("Format", format), h("div", {class: "filters"}, given.map(name => field(name, inputs[name]))),
    h("p", {class: "quiet"}, "That somebody exported it is in the log too."),
  ], {submit: "Save as a file", withReason: false, onsubmit: async () => {
    const query = Object.fromEntries(given.map(name => [name, inputs[name].value.trim()]));
    const end = ["csv"].includes(format.value) ? "csv" : "jsonl";
    await download("/events/export", {...query, format: format.value}, `kudurru-${format.value}.${end}`);
    return true;
  }});
}

// --- the chain -------------------------------------------------------------------------------

/** What the newest checkpoint covers, and looking at the rows themselves. */
function logCard(signal) {
  const said = h("div", {}), result = h("div", {});
  const look = level => button(level === "tail" ? "Verify the newest rows" : "Verify all of it", async event => {
    event.target.disabled = true;
    fill(result, h("p", {class: "quiet"}, "Reading…"));
    try {
      fill(result, verdict(await get("/events/verify", {level}, signal)));
    } catch (failure) {
      fill(result, failureBox(failure));
    }
    event.target.disabled = false;
  });
  checkpoint(signal).then(found => fill(said, found), failure => fill(said, failureBox(failure)));
  return card("Is the log as it was written?", said,
    may("audit.verify") ? h("div", {class: "actions"}, look("tail"), look("full")) : null, result,
    h("p", {}, "The server vouches for itself here. Whoever does not trust it holds the log to a key that was kept elsewhere, where its data is:"),
    h("pre", {}, 'kudurru audit verify --key "$KEY"'));
}

async function checkpoint(signal) {
  const [info, found] = await Promise.all([get("/info", {}, signal), get("/checkpoint", {}, signal).catch(failure => {
    if (failure.code === 404) return null;
    throw failure;
  })]);
  if (!found) return note("Nothing was signed yet. A checkpoint is made ten seconds after a change.", "warn");
  const [origin, size, root] = found.note.split("\n");
  const left = info.position - Number(size);
  return [
    h("p", {}, left > 0 ? badge(`${counted(left, "newer event")} not signed yet`, "warn") : badge("signed up to its end", "good")),
    h("dl", {class: "facts"},
      h("dt", {}, "Log"), h("dd", {class: "mono"}, origin),
      h("dt", {}, "Events"), h("dd", {}, number(info.position)),
      h("dt", {}, "Last checkpoint"), h("dd", {}, `covers ${number(size)} events`),
      h("dt", {}, "Root"), h("dd", {class: "mono"}, root)),
  ];
}

function verdict({level, rows, damages}) {
  if (!damages.length) {
    return note(`${number(rows)} rows are consistent: ${level === "full" ? "every" : "each of the newest"} row, link and signature is what it should be.`, "good");
  }
  return h("div", {class: "note bad", role: "alert"}, h("p", {}, h("strong", {}, "The log was damaged or changed.")),
    h("ul", {}, damages.map(one => h("li", {}, `${one.kind} at position ${one.position}: ${one.message}`))));
}
