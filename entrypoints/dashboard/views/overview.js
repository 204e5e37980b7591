// Overview: whether this node answers, what it was asked, and what deserves a look.

import {fill, h} from "../dom.js";
import {get, may, readiness, who} from "../api.js";
import {badge, card, empty, failureBox, heading, number, table, when} from "../ui.js";
import {keptDrawn} from "../live.js";

const EVERY_MS = 10000;
const DOCTOR_MS = 300000;

const SOURCES = [
  ["blocked", "blocked", "bad"],
  ["cache", "from the cache", "good"],
  ["forward", "forwarded", "brand"],
  ["authoritative", "from zones here", "brand"],
  ["rewritten", "rewritten", "warn"],
  ["stale", "stale, upstreams being away", "warn"],
  ["local", "special names", "quiet"],
  ["refused", "refused", "quiet"],
];

export async function show(root, {signal}) {
  const place = h("div", {class: "cards"});
  fill(root, heading("Overview"), place);
  // It looks at disks and at the newest events: a look now and then is enough.
  const doctor = lasting(() => get("/doctor", {}, signal), DOCTOR_MS);
  await keptDrawn(place, {load: () => asked(signal, doctor), draw: cards, signal, everyMs: EVERY_MS});
}

async function asked(signal, doctor) {
  const stats = subject => () => get(`/stats/${subject}`, {limit: 8}, signal);
  const seesFilters = may("explain") && !who().zones.length;
  const [ready, domains, blocked, clients, lists, blocking, report, info, note] = await Promise.all([
    tried(true, () => readiness(signal)),
    tried(may("stats"), stats("domains")),
    tried(may("stats"), stats("blocked")),
    // A viewer may ask for clients where the log has pseudonyms only; elsewhere each try is a
    // refusal in the log.
    tried(may("querylog.read"), stats("clients")),
    tried(seesFilters, () => get("/lists", {}, signal)),
    tried(seesFilters, () => get("/blocking", {}, signal)),
    tried(may("doctor"), doctor),
    tried(true, () => get("/info", {}, signal)),
    tried(true, () => get("/checkpoint", {}, signal)),
  ]);
  return {ready, domains, blocked, clients, lists, blocking, doctor: report, info, note};
}

function cards({ready, domains, blocked, clients, lists, blocking, doctor, info, note}) {
  return [
    shown("DNS", ready, found => health(found, blocking)),
    shown("Queries of the last 24 hours", domains, queries),
    shown("Names blocked most", blocked, found => busiest(found.top, "Name", "blocked")),
    shown("Names asked most", domains, found => busiest(found.top, "Name", "queries")),
    shown("Busiest clients", clients, found => busiest(found.top, "Client", "queries")),
    shown("Block lists", lists, freshness),
    shown("Log", info, found => log(found, note, doctor)),
    shown("What deserves a look", doctor, advice),
  ];
}

/** A request whose answer is kept for a while. */
function lasting(request, ms) {
  let kept = null, until = 0;
  return async () => {
    if (kept === null || Date.now() >= until) {
      kept = await request();
      until = Date.now() + ms;
    }
    return kept;
  };
}

/** What a request came to; a part that fails does not take the others with it. */
async function tried(mayAsk, request) {
  if (!mayAsk) return null;
  try {
    return await request();
  } catch (failure) {
    if (failure.name === "AbortError" || failure.code === 401) throw failure;
    return failure;
  }
}

function shown(title, found, draw) {
  if (found === null) return null;  // not for this token
  if (found instanceof Error && found.code === 403) return null;  // by a setting, not by the role
  return card(title, found instanceof Error ? failed(found) : draw(found));
}

const failed = failure => failure.code === 404 ? h("p", {class: "quiet"}, failure.message) : failureBox(failure);

function health(found, blocking) {
  const pauses = blocking?.pauses || [];
  return [
    h("p", {class: "state"}, found.ready ? badge("answers", "good") : badge("not ready", "bad")),
    found.reasons.map(reason => h("p", {}, reason)),
    found.warnings.map(warning => h("p", {}, badge("warning", "warn"), " ", warning)),
    pauses.map(pause => h("p", {}, badge("paused", "warn"), " blocking, for ", pause.group || "everybody",
      pause.until ? [", ends ", when(pause.until)] : ", until it is resumed")),
    pauses.length ? h("p", {}, h("a", {href: "#/filtering"}, "To filtering")) : null,
  ];
}

function queries({totals}) {
  const all = Object.values(totals).reduce((sum, count) => sum + count, 0);
  if (!all) {
    return empty("Nobody asked yet.", h("p", {}, "Have a device or your router use this machine as its DNS server."));
  }
  const known = new Set(SOURCES.map(([source]) => source));
  const rows = [...SOURCES, ...Object.keys(totals).filter(one => !known.has(one)).map(one => [one, one, "quiet"])]
    .filter(([source]) => totals[source]);
  return [
    h("p", {class: "large"}, number(all)),
    h("div", {class: "shares"}, rows.map(([source, text, tone]) => {
      const share = 100 * totals[source] / all;
      return h("div", {class: "share"},
        h("span", {}, h("a", {href: `#/queries?source=${encodeURIComponent(source)}`}, text)),
        h("span", {class: "number"}, `${share.toFixed(1)} %`),
        h("span", {class: `bar ${tone}`, style: {width: `${Math.max(share, .5)}%`}}));
    })),
  ];
}

function busiest(top, title, count) {
  const rows = top.filter(one => one[count]);
  if (!rows.length) return h("p", {class: "quiet"}, "None in the last 24 hours.");
  const word = title === "Client" ? "client" : "name";
  return table([
    {title, cell: one => h("a", {href: `#/queries?${word}=${encodeURIComponent(one.text)}`}, one.text)},
    {title: count === "blocked" ? "Blocked" : "Queries", class: "number", cell: one => number(one[count])},
  ], rows, {about: title, short: true});
}

function freshness(rows) {
  if (!rows.length) {
    return empty("No list is subscribed to.", h("p", {}, h("a", {href: "#/filtering"}, "Add one under Filtering")));
  }
  return table([
    {title: "List", cell: one => `${one.namespace}/${one.name}`},
    {title: "State", cell: stateOf},
    {title: "Rules", class: "number", cell: one => number(one.entries)},
  ], rows, {about: "Block lists", short: true});
}

/** How a list is, in a badge. */
export function stateOf(row) {
  if (!row.enabled) return badge("switched off");
  if (!row.sources.length) return badge("not fetched yet", "warn");
  if (row.sources.some(one => one.phase === "Failed")) return badge("failed", "bad");
  if (row.sources.some(one => one.phase === "Stale")) return badge("stale", "warn");
  return badge("fresh", "good");
}

function log(info, note, doctor) {
  const signed = note?.note ? Number(note.note.split("\n")[1]) : null;
  const follow = (doctor?.checks || []).find(one => one.check === "follow");
  return [
    h("p", {}, "Newest change: ", h("a", {href: "#/history"}, `number ${number(info.position)}`)),
    h("p", {}, signed === null ? "Nothing of it is signed yet." : `Signed up to number ${number(signed)}.`),
    follow ? h("p", {}, follow.message) : null,
    h("p", {class: "quiet"}, `kudurru ${info.version}, signed in as ${who().token}`),
  ];
}

function advice(report) {
  const found = report.checks.filter(one => one.status !== "ok");
  if (!found.length) return h("p", {}, badge("all is well", "good"));
  const tone = {warn: "warn", fail: "bad"};
  return h("ul", {class: "plain"}, found.map(one =>
    h("li", {}, badge(one.check, tone[one.status] || "bad"), " ", one.message)));
}
