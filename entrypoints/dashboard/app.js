// The shell: which view is shown (by location.hash), the navigation, and who is signed in.
//
// A view is a module with `export async function show(root, params)`. `params` has the names of its
// route, `query` (URLSearchParams of what is after the ? of the hash) and `signal`, which aborts
// when the person goes elsewhere: streams and timers of a view end with it.

import {h, fill} from "./dom.js";
import {get, hasToken, may, readiness, rest, signIn, signOut, whenReached, whenSignedOut, who} from "./api.js";
import {button, failureBox, field, heading, note} from "./ui.js";
import * as explain from "./views/explain.js";
import * as filtering from "./views/filtering.js";
import * as history_ from "./views/history.js";
import * as objects from "./views/objects.js";
import * as overview from "./views/overview.js";
import * as queries from "./views/queries.js";
import * as restore from "./views/restore.js";
import * as zone from "./views/zone.js";
import * as zones from "./views/zones.js";

// All are there from the start: a view that is fetched when somebody goes to it may be of another
// version by then, or not to be had.
const VIEWS = {explain, filtering, history: history_, objects, overview, queries, restore, zone, zones};

// hash, module below views/, title, the right that it needs; with a word it is in the navigation.
const ROUTES = [
  ["", "overview", "Overview", "info", "Overview"],
  ["queries", "queries", "Query log", "stats", "Query log"],
  ["filtering", "filtering", "Filtering", "explain", "Filtering"],
  ["explain", "explain", "Explain", "explain", "Explain"],
  ["zones", "zones", "Zones", "objects.read", "Zones"],
  ["zones/:name", "zone", "Zone", "objects.read"],
  ["history", "history", "History", "history", "History"],
  ["restore", "restore", "Restore", "restore", "Restore"],
  ["objects/:kind/:namespace/:name", "objects", "Object", "objects.read"],
].map(([path, view, title, right, word]) => ({parts: path.split("/"), path, view, title, right, word}));

const AWAY_MS = 3000;  // between looks whether the server is there again

let leaving = new AbortController();
let isAway = false, hasFailed = false;
const main = h("main", {id: "main"}), away = h("div", {id: "away", role: "status"});

/** Lists and policies are of no zone: a token that is limited to zones sees none of them. */
const mayView = route => may(route.right) && !(route.view === "filtering" && who().zones.length);

function start() {
  whenSignedOut(showSignIn);
  whenReached(isThere => { if (!isThere) waitForServer(); });
  addEventListener("hashchange", () => { if (who()) showView(); });
  hasToken() ? enter() : showSignIn();
}

/** With the token that this tab has. */
function enter() {
  signIn().then(showShell, failure => showSignIn(failure));
}

/** Say that the server is away until it is there again, and look again at what failed by that. */
async function waitForServer() {
  if (isAway) return;
  isAway = true;
  fill(away, h("p", {}, "The server does not answer. What is shown is from before; it is asked again every few seconds."));
  const never = new AbortController().signal;
  for (let isThere = false; !isThere;) {
    await rest(AWAY_MS, never);
    // One that reads its log still answers to no token.
    isThere = await (who() ? get("/info", {}, never) : readiness(never)).then(
      () => true, ({code}) => code !== 0 && code !== 503);
  }
  isAway = false;
  fill(away);
  if (who() && hasFailed && !document.querySelector("dialog")) showView();
}

// --- signing in ------------------------------------------------------------------------------

const COMMAND = "kudurru token create me --role admin";

function showSignIn(why = "") {
  leaving.abort();
  closeDialogs();
  const said = h("div", {}, typeof why !== "string" ? failureBox(why) : why ? note(why, "bad") : null);
  // A server that is away, or reads its log still, said nothing of the token.
  if (typeof why !== "string" && hasToken()) said.append(button("Try again", enter));
  const token = h("input", {type: "password", name: "token", autocomplete: "off", required: true,
    spellcheck: "false"});
  const form = h("form", {onsubmit: async event => {
    event.preventDefault();
    fill(said);
    try {
      await signIn(token.value.trim());
      showShell();
    } catch (failure) {
      fill(said, failureBox(failure), failure.code === 403 ? note(
        "A token that makes others, such as admin.token, reads nothing. Make one for yourself with the command below.") : null);
      token.select();
    }
  }},
  field("Token", token), h("button", {type: "submit", class: "primary"}, "Sign in"), said);
  fill(document.body, h("div", {class: "signin"},
    h("h1", {}, "kudurru"),
    form,
    h("p", {}, "No token yet? On the machine where kudurru runs, in the folder of its data:"),
    h("pre", {}, COMMAND),
    h("p", {class: "quiet"}, "It is shown once. ", h("code", {}, "--role viewer"), " may look, ",
      h("code", {}, "operator"), " may also change things. This tab forgets it when it is closed.")));
  document.title = "Sign in · kudurru";
  token.focus();
}

const closeDialogs = () => document.querySelectorAll("dialog").forEach(one => one.close());

// --- the shell -------------------------------------------------------------------------------

function showShell() {
  const links = ROUTES.filter(route => route.word && mayView(route)).map(route =>
    h("li", {}, h("a", {href: `#/${route.path}`, "data-view": route.view}, route.word)));
  const me = who();
  fill(document.body,
    h("a", {class: "skip", href: "#main", onclick: event => { event.preventDefault(); main.querySelector("h1")?.focus(); }},
      "Skip to the content"),
    h("nav", {"aria-label": "Views"},
      h("a", {class: "brand", href: "#/"}, "kudurru"),
      h("ul", {}, links),
      h("div", {class: "me"}, h("span", {title: `token ${me.token}`}, me.token), h("span", {class: "quiet"}, me.role),
        button("Sign out", () => signOut(), {class: "plain"}))),
    away, main,
    h("div", {id: "said", "aria-live": "polite"}));
  showView();
}

async function showView() {
  const began = document.activeElement;
  leaving.abort();
  closeDialogs();  // they are of the view before
  hasFailed = false;
  leaving = new AbortController();
  const {signal} = leaving;
  const {route, params, query} = found(location.hash);
  const root = h("div", {class: "view"});
  fill(main, root);
  document.title = `${route ? route.title : "Not found"} · kudurru`;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const isHere = route && (link.dataset.view === route.view || (route.view === "zone" && link.dataset.view === "zones"));
    isHere ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  try {
    if (!route) {
      fill(root, heading("Nothing is here", "No view has this address. The navigation leads to all of them."));
    } else if (!mayView(route)) {
      fill(root, heading(route.title), note(may(route.right) ? "A token that is limited to zones may not see this."
        : `A token of the role ${who().role} may not see this.`));
    } else {
      await VIEWS[route.view].show(root, {...params, query, signal});
    }
  } catch (failure) {
    if (signal.aborted) return;
    hasFailed = true;
    root.append(failureBox(failure), button("Try again", showView));
  }
  // Whoever went on with the keyboard meanwhile stays where they are.
  const isWhereItBegan = [began, document.body, null].includes(document.activeElement);
  if (!signal.aborted && isWhereItBegan) root.querySelector("h1")?.focus({preventScroll: true});
}

function found(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const given = path.split("/");
  for (const route of ROUTES) {
    const params = matched(route.parts, given);
    if (params) return {route, params, query: new URLSearchParams(query || "")};
  }
  return {route: null, params: {}, query: new URLSearchParams()};
}

function matched(parts, given) {
  if (parts.length !== given.length) return null;
  const params = {};
  for (const [i, part] of parts.entries()) {
    if (part.startsWith(":")) {
      try { params[part.slice(1)] = decodeURIComponent(given[i]); } catch { return null; }
    } else if (part !== given[i]) return null;
  }
  return params;
}

start();
