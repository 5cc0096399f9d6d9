// The event stream of a job. It is read with `fetch`, because EventSource cannot send the key as a header. After a lost connection it
// continues without a gap. A hidden tab closes its stream: over HTTP/1.1, browsers open only six connections to a service, for all tabs
// together, and six open streams would block every other request.

import { request } from "./api.js";

const SILENCE_MS = 40_000; // The service sends a line at least every 2 s. After this time without one, the connection counts as lost.
const WAIT_MS = [250, 500, 1000, 2000, 4000];
const TEMPORARY = [408, 429]; // A proxy's time limit, and too many requests: a later request may succeed.

/** Call `message(kind, data)` for each event after number `after`, and `state(name)` when the connection changes: "live", "lost", "ended",
 * "refused", or "connecting" while the tab is hidden.
 * Return a function that closes the stream. */
export function follow(job, { after = 0, message, state }) {
  let last = String(after), isFinal = false, stopped = false, tries = 0;
  let aborting = new AbortController(), retryNow = () => {};

  const onEvent = (kind, data, id) => {
    if (kind === "job") isFinal = ["succeeded", "cancelled", "failed"].includes(data.state);
    message(kind, data);
    if (id !== null) last = id;
  };

  async function read() {
    aborting = new AbortController();
    let silence;
    const restartTimer = () => { clearTimeout(silence); silence = setTimeout(() => aborting.abort(), SILENCE_MS); };
    try {
      restartTimer();
      const answer = await request(`/jobs/${job}/events`, { headers: { "Last-Event-ID": last }, signal: aborting.signal });
      tries = 0;
      state("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser(onEvent);
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        restartTimer();
        parser.take(value);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async function run() {
    while (!stopped) {
      if (document.hidden) {
        state("connecting");
        await new Promise((done) => { retryNow = done; });
        continue;
      }
      try {
        await read();
      } catch (error) {
        if (error.status >= 400 && error.status < 500 && !TEMPORARY.includes(error.status)) { state("refused"); return; }
      }
      if (stopped) return;
      if (isFinal) { state("ended"); return; }
      if (document.hidden) continue;
      state("lost");
      const wait = WAIT_MS[Math.min(tries++, WAIT_MS.length - 1)];
      await new Promise((done) => { retryNow = done; setTimeout(done, wait); });
    }
  }

  const online = () => retryNow();
  const onVisibility = () => { if (document.hidden) aborting.abort(); else retryNow(); };
  addEventListener("online", online);
  document.addEventListener("visibilitychange", onVisibility);
  run();
  return () => {
    stopped = true;
    removeEventListener("online", online);
    document.removeEventListener("visibilitychange", onVisibility);
    aborting.abort();
    retryNow();
  };
}

/** Parses server-sent events as the HTML standard defines them: fields, then an empty line. */
class EventParser {
  constructor(onEvent) {
    this.onEvent = onEvent;
    this.rest = "";
  }

  take(piece) {
    const frames = (this.rest + piece).split("\n\n");
    this.rest = frames.pop();
    for (const frame of frames) this.parse(frame);
  }

  parse(frame) {
    let kind = null, data = "", id = null;
    for (const line of frame.split("\n")) {
      if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("id: ")) id = line.slice(4);
    }
    if (kind !== null) this.onEvent(kind, JSON.parse(data), id);
  }
}
