// Explain: which zone, policy, list and rule decide what a client gets.

import {fill, h} from "../dom.js";
import {button, failureBox, field, heading, select} from "../ui.js";
import {explainInto} from "../filters.js";

const TYPES = ["A", "AAAA", "HTTPS", "SVCB", "CNAME", "MX", "TXT", "NS", "SOA", "SRV", "PTR", "CAA"];

export async function show(root, {query, signal}) {
  const name = h("input", {type: "text", required: true, value: query.get("name") || "", autocomplete: "off", spellcheck: "false",
    placeholder: "www.example.org"});
  const type = select(TYPES, query.get("type") || "A");
  const client = h("input", {type: "text", value: query.get("client") || "", placeholder: "127.0.0.1", autocomplete: "off"});
  const at = h("input", {type: "text", value: query.get("at") || "", placeholder: "2 days ago", autocomplete: "off"});
  const found = h("section", {class: "card", hidden: true, "aria-live": "polite"});

  async function explain() {
    const asked = {name: name.value.trim(), type: type.value, client: client.value.trim(), at: at.value.trim()};
    const words = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
    history.replaceState(null, "", `#/explain?${words}`);
    found.hidden = false;
    fill(found, h("p", {class: "quiet"}, "Asking…"));
    try {
      await explainInto(found, asked, button, signal);
    } catch (failure) {
      if (!signal.aborted) fill(found, failureBox(failure));
    }
  }

  fill(root,
    heading("Explain", "Why a client gets the answer that it gets: by the same rules that decide for queries."),
    h("form", {class: "card", onsubmit: event => { event.preventDefault(); explain(); }},
      h("div", {class: "filters"},
        field("Name", name), field("Type", type),
        field("Client", client), field("At", at)),
      h("button", {type: "submit", class: "primary"}, "Explain")),
    found);
  if (name.value) await explain();
  else name.focus();
}
