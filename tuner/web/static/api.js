// Requests to the REST API with the key, and its errors.

const NAME = "tuner.key";
const tabs = new BroadcastChannel("tuner");

/** Store a key that the address has after its #, and remove it from the address, so that it is not visible or bookmarked. */
export function takeKey() {
  const given = /^#key=([^&]+)(?:&(job|ray)=([A-Za-z0-9_-]*))?$/.exec(location.hash);
  if (given === null) return;
  setKey(decodeURIComponent(given[1]));
  const [, , where, job] = given;
  history.replaceState(null, "", !where ? "#/" : where === "job" ? `#/jobs/${job}` : `#/ray/${job}`);
}

export function key() {
  return localStorage.getItem(NAME) ?? "";
}

export function setKey(value) {
  if (value === "") localStorage.removeItem(NAME);
  else localStorage.setItem(NAME, value.trim());
}

/** An error of the API (RFC 9457). Status 0 means that there was no answer. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title);
    this.status = status;
    this.title = body.title ?? `Error ${status}`;
    this.detail = body.detail ?? "";
    this.errors = body.errors ?? [];
  }
}

const SILENT = {
  title: "The service does not answer",
  detail: "Check that `tuner serve` runs and can be reached, then try again. A repeated request never takes effect twice.",
};

/** Send a request and return the successful response. Throw a Problem for any other status, or if there is no answer. */
export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  let answer;
  try {
    answer = await fetch(`v1${path}`, {
      method,
      signal,
      headers: {
        Authorization: `Bearer ${key()}`,
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, SILENT);
  }
  if (answer.ok) return answer;
  const refusal = await answer.json().catch(() => ({}));
  if (answer.status === 401) document.dispatchEvent(new Event("key-refused"));
  throw new Problem(answer.status, refusal);
}

export async function call(path, options) {
  return (await ask(path, options)).json();
}

/** Notify the other tabs that this tab changed a job. */
export function changed(job) {
  tabs.postMessage(job);
}

/** Call `act` with the id of each job that another tab changes. Return a function that stops this. */
export function onChanged(act) {
  const heard = (event) => act(event.data);
  tabs.addEventListener("message", heard);
  return () => tabs.removeEventListener("message", heard);
}

/** Return a random key. This also works in a page without a secure context (HTTPS), which lacks `crypto.randomUUID`. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
