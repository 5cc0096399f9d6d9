// Changes of a job that are made once, whatever happens on the way: each says how things shall be in the end, and holds only
// for the revision that was seen.

import { call } from "./api.js";

/** The job was changed since it was seen; `job` is how it is now. */
export class Meanwhile {
  constructor(job) {
    this.job = job;
  }
}

/** Changes `seen` by `body` unless `is(job)` says that it is so already. Raises Meanwhile, or Problem where the service does not
 * answer or refuses. An answer that was lost is looked for: what was done is not done again. */
export async function change(seen, body, is) {
  const path = `/jobs/${seen.id}`;
  const send = () => call(path, { method: "PATCH", body, headers: { "If-Match": `"${seen.revision}"` } });
  try {
    return await send();
  } catch (error) {
    if (error.status !== 412 && error.status !== 0) throw error;
    const now = await call(path);
    if (is(now)) return now;
    if (now.revision !== seen.revision) throw new Meanwhile(now);
    return send();
  }
}

/** Pause, resume or cancel. Asked for a second time after a lost answer, unless the job already is as it shall be. */
export async function order(id, name) {
  const send = () => call(`/jobs/${id}/${name}`, { method: "POST" });
  try {
    return await send();
  } catch (error) {
    if (error.status !== 0) throw error;
    const now = await call(`/jobs/${id}`);
    const done = { pause: now.state === "paused", cancel: now.state === "cancelled", resume: now.state === "running" || now.state === "queued" };
    return done[name] ? now : send();
  }
}
