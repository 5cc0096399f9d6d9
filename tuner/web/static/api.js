// Requests to the REST API with the key, and its errors.

const NAME = "tuner.key";
const tabs = new BroadcastChannel("tuner");

/** Move a key that follows the # of the address to the storage, so that the address does not show it and a bookmark does not contain it. */
export function takeKey() {
  const match = /^#key=([^&]+)(?:&(job|ray)=([A-Za-z0-9_-]*))?$/.exec(location.hash);
  if (match === null) return;
  setKey(decodeURIComponent(match[1]));
  const [, , page, job] = match;
  history.replaceState(null, "", !page ? "#/" : page === "job" ? `#/jobs/${job}` : `#/ray/${job}`);
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

const NO_ANSWER = {
  title: "The service does not answer",
  detail: "Check that `tuner serve` runs and can be reached, then try again.",
};

/** Send a request and return the successful response. Throw a Problem for any other status, or if there is no answer. */
export async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
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
    throw new Problem(0, NO_ANSWER);
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) document.dispatchEvent(new Event("key-refused"));
  throw new Problem(answer.status, problem);
}

export async function call(path, options) {
  return (await request(path, options)).json();
}

/** Notify the other tabs that this tab changed a job. */
export function notifyTabs(job) {
  tabs.postMessage(job);
}

/** Call `act` with the id of each job that another tab changes. Return a function that stops this. */
export function onJobChanged(act) {
  const onMessage = (event) => act(event.data);
  tabs.addEventListener("message", onMessage);
  return () => tabs.removeEventListener("message", onMessage);
}

/** Return a random key. This also works in a page without a secure context (HTTPS), which lacks `crypto.randomUUID`. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
