// Query log: what was asked, by whom, and what became of it; live where that is wanted.

import {fill, h} from "../dom.js";
import {get, rest} from "../api.js";
import {badge, button, empty, failureBox, field, heading, note, rowOf, select, table, when} from "../ui.js";
import {explainInto} from "../filters.js";

const PAGE = 100;
const ASKED_MAX = 1000;  // the most that the API gives at once
const SHOWN_MAX = 500;
const LIVE_MS = 2000;
const TONES = {blocked: "bad", rewritten: "warn", stale: "warn", refused: "warn", cache: "good"};
const SOURCES = ["blocked", "cache", "forward", "authoritative", "rewritten", "stale", "local", "refused"];
const ADDRESS = /^[0-9a-f.:]+$/i;

export async function show(root, {query, signal}) {
  const log = new QueryLog(query, signal);
  fill(root,
    heading("Query log", "What was asked, newest first. What is kept, and for how long, are settings of the server."),
    log.form(), log.place);
  await log.look();
}

const COLUMNS = [
  {title: "When", cell: one => when(one.time)},
  {title: "Name", cell: one => h("button", {type: "button", class: "plain", title: "Why?"}, `${one.name} ${one.type}`)},
  {title: "Client", class: "client", cell: one => one.client},
  {title: "Outcome", cell: one => [badge(one.source, TONES[one.source] || ""), one.rcode === "NOERROR" ? "" : ` ${one.rcode}`,
    one.count > 1 ? ` ×${one.count}` : ""]},
  {title: "By", cell: one => ["blocked", "rewritten"].includes(one.source) ? one.list || one.policy : one.upstream},
];

class QueryLog {
  constructor(query, signal) {
    const input = (name, hint) => h("input", {type: "text", value: query.get(name) || "", placeholder: hint,
      autocomplete: "off", spellcheck: "false"});
    this.signal = signal;
    this.given = {
      name: input("name", "example.org"), client: input("client", "192.168.1.20"),
      source: select([["any", ""], ...SOURCES], query.get("source") || ""),
      since: input("since", "1h ago"), until: input("until", "now"),
    };
    this.live = h("input", {type: "checkbox", id: "live", onchange: () => this.goLive()});
    this.place = h("div", {});
    this.words = {};  // that were searched for
    this.newest = null;  // id of the newest query that was seen, once it was looked
    this.body = null;  // of the table, where there is one
  }

  form() {
    const {name, client, source, since, until} = this.given;
    return h("form", {class: "card", onsubmit: event => { event.preventDefault(); this.look(); }},
      h("div", {class: "filters"},
        field("Name", name), field("Client", client), field("Outcome", source), field("Since", since), field("Until", until)),
      h("div", {class: "actions"}, h("button", {type: "submit", class: "primary"}, "Search"),
        h("span", {class: "check"}, this.live, h("label", {for: "live"}, "Live"))));
  }

  wanted() {
    return Object.fromEntries(Object.entries(this.given).map(([name, control]) => [name, control.value.trim()]));
  }

  async asked(more) {
    return (await get("/queries", {...this.words, limit: PAGE, ...more}, this.signal)).items;
  }

  /** What is wanted, from its newest. */
  async look() {
    this.words = this.wanted();
    const words = new URLSearchParams(Object.entries(this.words).filter(([, value]) => value));
    history.replaceState(null, "", words.size ? `#/queries?${words}` : "#/queries");
    try {
      const items = await this.asked();
      this.newest = items.length ? items[0].id : this.newest ?? 0;
      this.draw(items);
    } catch (failure) {
      if (this.signal.aborted) return;
      fill(this.place, failureBox(failure), failure.code === 403
        ? note("Whoever may not read who asked, reads the log where it names nobody: where querylog.privacyLevel is 2 or more.") : null);
    }
  }

  draw(items) {
    if (!items.length) {
      this.body = null;
      fill(this.place, nothing(Object.values(this.words).some(Boolean)));
      return;
    }
    const made = table(COLUMNS, items, {about: "Queries", onRow: (element, one) => this.row(element, one)});
    this.body = made.querySelector("tbody");
    fill(this.place, made, this.olderButton(items));
  }

  olderButton(items) {
    if (items.length < PAGE) return null;
    const made = button("Older", () => this.older(items.at(-1), made));
    return h("div", {class: "actions older"}, made);
  }

  /** The API has no way back from a query; a moment is one. Those of its second come again, and where
   * a second has more than can be asked for, the rest of it is passed over. */
  async older(last, pressed) {
    pressed.disabled = true;
    try {
      const seen = new Set([...this.body.querySelectorAll("[data-id]")].map(one => one.dataset.id));
      let items = [], more = [];
      for (const ask of [{until: plusSecond(last.time)}, {until: plusSecond(last.time), limit: ASKED_MAX}, {until: last.time}]) {
        items = await this.asked(ask);
        more = items.filter(one => !seen.has(String(one.id)));
        if (more.length || items.length < PAGE) break;
      }
      this.body.append(...more.map(one => this.made(one)));
      pressed.parentElement.replaceWith(more.length ? this.olderButton(items) || "" : "");
    } catch (failure) {
      if (!this.signal.aborted) pressed.parentElement.replaceWith(failureBox(failure));
    }
  }

  made(one) {
    return rowOf(COLUMNS, one, (element, query) => this.row(element, query));
  }

  row(element, one) {
    element.dataset.id = one.id;
    const opener = element.querySelector("button");
    opener.setAttribute("aria-expanded", "false");
    opener.addEventListener("click", () => this.toggle(element, opener, one));
  }

  toggle(element, opener, one) {
    const isOpen = opener.getAttribute("aria-expanded") === "true";
    opener.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) {
      element.nextElementSibling.remove();
      return;
    }
    const why = h("div", {}, h("p", {class: "quiet"}, "Asking…"));
    element.after(h("tr", {class: "more"}, h("td", {colspan: COLUMNS.length}, h("div", {}, details(one), why))));
    this.explain(one, why);
  }

  async explain(one, why) {
    if (!ADDRESS.test(one.client)) {
      fill(why, h("p", {class: "quiet"}, "The log does not keep who asked, so what they would get now cannot be told."));
      return;
    }
    try {
      await explainInto(why, {name: one.name, type: one.type, client: one.client}, button, this.signal);
    } catch (failure) {
      if (!this.signal.aborted) fill(why, failureBox(failure));
    }
  }

  /** As queries come, until the box is cleared or the person goes elsewhere. */
  async goLive() {
    while (this.live.checked && !this.signal.aborted) {
      try {
        if (!document.hidden && this.newest !== null) this.add(await this.asked({until: "", after: this.newest}));
      } catch (failure) {
        if (this.signal.aborted) return;
        if (failure.code === 0 || failure.code === 503) {  // away, or it reads its log still: for a while
          await rest(LIVE_MS, this.signal);
          continue;
        }
        this.live.checked = false;
        this.place.prepend(failureBox(failure));
        return;
      }
      await rest(LIVE_MS, this.signal);
    }
  }

  add(items) {
    if (!items.length) return;
    this.newest = items.at(-1).id;
    if (this.body === null) {
      this.draw([...items].reverse());
      return;
    }
    for (const one of items) this.body.prepend(this.made(one));
    while (this.body.rows.length > SHOWN_MAX) this.body.lastElementChild.remove();
  }
}

function nothing(wasAsked) {
  return empty(wasAsked ? "No query is like that." : "No query was logged yet.", h("p", {}, wasAsked
    ? "Leave some of the fields empty, or look further back."
    : "Have a device use this machine as its DNS server; what it asks is here some seconds later."));
}

/** What the log has of a query beside its row. */
function details(one) {
  const rows = [["rule", one.rule], ["list", one.list], ["policy", one.policy], ["upstream", one.upstream],
    ["over", one.proto], ["took", `${one.durationMs} ms`], ["answered", one.rcode]].filter(([, value]) => value);
  return [h("h3", {}, "Then"), h("dl", {}, rows.map(([word, value]) => [h("dt", {}, word), h("dd", {}, value)])), h("h3", {}, "Now")];
}

function plusSecond(time) {
  return new Date(Date.parse(time) + 1000).toISOString().replace(/\.\d+Z$/, "Z");
}
