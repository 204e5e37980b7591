// The API: requests with the token of the person, one shape of failure. The token is kept in
// sessionStorage, which ends with the tab, and goes into the Authorization header only.

const PREFIX = "/api/v1";
const KEY = "kudurru-token";

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

/** Who is signed in: token (its name), role, rights, namespaces, zones, version, logId. */
export const who = () => me;

/** Whether the token has a right, as the API calls it: "objects.write", "blocking". */
export const may = right => me !== null && me.rights.includes(right);

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** `listener` is told why nobody is signed in any more. */
export function whenSignedOut(listener) {
  onSignedOut = listener;
}

/** Raises Failure where the token does not count. */
export async function signIn(token) {
  if (token !== undefined) sessionStorage.setItem(KEY, token);
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
  const type = response.headers.get("Content-Type") || "";
  const data = type.includes("json") ? await response.json() : await response.text();
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
  const found = await response.json();
  const causes = ((found.details || {}).causes || []).map(cause => cause.message);
  return {ready: response.ok, reasons: causes, warnings: found.warnings || []};
}

/** Save what a path answers as a file of the person. */
export async function download(path, query, name) {
  const response = await send("GET", PREFIX + path + asked(query), {});
  if (!response.ok) throw refused(response, await response.json());
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
    if (error.name === "AbortError") throw error;
    throw new Failure(0, {reason: "Unreachable", message: "the server does not answer; is it running?"});
  }
  // Of somebody who was let in; a token that is tried at sign-in is told of there.
  if (response.status === 401 && !open && me !== null) signOut((await response.clone().json()).message);
  return response;
}

function asked(query) {
  const pairs = Object.entries(query || {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? "?" + new URLSearchParams(pairs) : "";
}

function refused(response, data) {
  return new Failure(response.status, typeof data === "object" && data !== null ? data : {message: data});
}

function warningsOf(header) {
  return [...header.matchAll(/299 \S+ "((?:[^"\\]|\\.)*)"/g)].map(found => found[1].replace(/\\(.)/g, "$1"));
}
