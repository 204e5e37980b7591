// The API: requests with the token of the person, one shape of failure. The token is kept in
// sessionStorage, which ends with the tab, and goes into the Authorization header only.

const PREFIX = "/api/v1";
const KEY = "kudurru-token";
const CLOCK_MS = 3000;  // clocks that differ by less agree

/** What the API refused, or that it could not be reached (code 0). */
export class Failure extends Error {
  constructor(code, status) {
    super(status.message || `the server answered ${code}`);
    this.code = code;
    this.reason = status.reason || "";
    this.details = status.details || {};
    this.causes = this.details.causes || [];
  }
}

/** What is wrong with what somebody wrote, where the server need not be asked. */
export const fault = message => new Failure(0, {reason: "Invalid", message});

let me = null;  // what /info says of the token
let onSignedOut = () => {};
let onReached = () => {};
let aheadMs = 0;  // of the server's clock, before that of this browser

/** Who is signed in: token (its name), role, rights, namespaces, zones, version, logId. */
export const who = () => me;

/** Whether the token has a right, as the API calls it: "objects.write", "blocking". */
export const may = right => me !== null && me.rights.includes(right);

/** The namespace that a new object of the token goes to, where nobody says another. */
export const homeNamespace = () => me?.namespaces[0] || "default";

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** `listener` is told why nobody is signed in any more. */
export function whenSignedOut(listener) {
  onSignedOut = listener;
}

/** `listener` is told, after each request, whether the server was there. */
export function whenReached(listener) {
  onReached = listener;
}

/** The server's time in ms: moments are of its clock, and that of a phone may be wrong. */
export const now = () => Date.now() + aheadMs;

/** Raises Failure where the token does not count. */
export async function signIn(token) {
  if (token !== undefined) {
    // A browser sends no other characters in a header, and does not say which it minds.
    if (!/^[\x21-\x7e]+$/.test(token)) throw fault("that is no token: it has letters, digits and signs of ASCII, and no spaces");
    sessionStorage.setItem(KEY, token);
  }
  try {
    me = await get("/info");
  } catch (failure) {
    if (failure.code === 401 || failure.code === 403) sessionStorage.removeItem(KEY);
    throw failure;
  }
  return me;
}

export function signOut(why = "") {
  sessionStorage.removeItem(KEY);
  me = null;
  onSignedOut(why);
}

/**
 * Ask. `query` is an object, whose empty values are left out; `body` an object that is sent as JSON,
 * or a text with a `type`. Resolves to {data, etag, verb, position, warnings}; raises Failure.
 */
export async function ask(method, path, given = {}) {
  const response = await send(method, PREFIX + path + asked(given.query), given);
  const data = await contentOf(response);
  if (!response.ok) throw refused(response, data);
  const warnings = response.headers.get("Warning");
  return {
    data,
    etag: response.headers.get("ETag"),
    verb: response.headers.get("X-Kudurru-Verb"),
    position: response.headers.get("X-Kudurru-Position"),
    warnings: warnings ? warningsOf(warnings) : [],
  };
}

export async function get(path, query, signal) {
  return (await ask("GET", path, {query, signal})).data;
}

/** Whether this node is to be sent queries: {ready, reasons}. It needs no token. */
export async function readiness(signal) {
  const response = await send("GET", "/healthz/ready", {signal, open: true});
  const found = await contentOf(response);
  if (typeof found === "string") throw refused(response, found);
  const causes = ((found.details || {}).causes || []).map(cause => cause.message);
  return {ready: response.ok, reasons: causes, warnings: found.warnings || []};
}

/** Save what a path answers as a file of the person. */
export async function download(path, query, name) {
  const response = await send("GET", PREFIX + path + asked(query), {});
  if (!response.ok) throw refused(response, await contentOf(response));
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  [link.href, link.download] = [url, name];
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/** Wait, or until the signal aborts. */
export function rest(ms, signal) {
  return new Promise(done => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, {once: true});
  });
}

/** A part of a path: names hold whatever people wrote. */
export const part = name => encodeURIComponent(name);

async function send(method, url, {body, type, ifMatch, ifNoneMatch, signal, open}) {
  const headers = {};
  if (!open) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY) || ""}`;
  if (body !== undefined) headers["Content-Type"] = type || "application/json";
  if (ifMatch) headers["If-Match"] = ifMatch;
  if (ifNoneMatch) headers["If-None-Match"] = ifNoneMatch;
  let response;
  try {
    response = await fetch(url, {
      method, headers, signal, credentials: "omit", cache: "no-store", redirect: "error",
      body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
    });
  } catch (error) {
    throw unreachable(error);
  }
  onReached(true);
  setClock(Date.parse(response.headers.get("Date")));
  // Of somebody who was let in; a token that is tried at sign-in is told of there.
  if (response.status === 401 && !open && me !== null) signOut(refused(response, await contentOf(response.clone())).message);
  return response;
}

function unreachable(error) {
  if (error.name === "AbortError") return error;
  onReached(false);
  return new Failure(0, {reason: "Unreachable", message: "the server does not answer; is it running?"});
}

/** What the server answered, as JSON where it is that. What stands in front of it may answer in its
 * place, with anything. */
async function contentOf(response) {
  let text;
  try {
    text = await response.text();
  } catch (error) {
    throw unreachable(error);
  }
  if (!(response.headers.get("Content-Type") || "").includes("json")) return text;
  try {
    return JSON.parse(text);
  } catch {
    throw refused(response, text);
  }
}

/** The header has whole seconds, and takes a while to come. */
function setClock(serverMs) {
  const ahead = serverMs + 500 - Date.now();
  if (!Number.isNaN(ahead) && Math.abs(ahead - aheadMs) > CLOCK_MS) aheadMs = Math.abs(ahead) > CLOCK_MS ? ahead : 0;
}

function asked(query) {
  const pairs = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? "?" + new URLSearchParams(pairs) : "";
}

function refused(response, data) {
  const isStatus = typeof data === "object" && data !== null;
  return new Failure(response.status, isStatus ? data : {
    reason: "NotUnderstood", message: `what answered (HTTP ${response.status}) is not kudurru; is something in front of it?`});
}

function warningsOf(header) {
  return [...header.matchAll(/299 \S+ "((?:[^"\\]|\\.)*)"/g)].map(found => found[1].replace(/\\(.)/g, "$1"));
}
