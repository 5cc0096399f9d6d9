// REST with the key, and problems as they are answered.

const NAME = "tuner.key";
const tabs = new BroadcastChannel("tuner");

/** Keep a key given behind the #, and take it out of the address, where it would be seen and bookmarked. */
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

/** What went wrong, as RFC 9457 has it; status 0: no answer came. */
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
  detail: "See that `tuner serve` runs and can be reached, then try again. Asking again never does a thing twice.",
};

/** An answer, after its status was looked at. Raises Problem. */
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
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401) document.dispatchEvent(new Event("key-refused"));
  throw new Problem(answer.status, told);
}

export async function call(path, options) {
  return (await ask(path, options)).json();
}

/** Tells the other tabs that a job was changed from here. */
export function changed(job) {
  tabs.postMessage(job);
}

/** Calls `act` with a job's id when another tab changed it. Returns what ends that. */
export function onChanged(act) {
  const heard = (event) => act(event.data);
  tabs.addEventListener("message", heard);
  return () => tabs.removeEventListener("message", heard);
}

/** Random, also where the page has no secure context. */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
