// Changes of a job that take effect exactly once, even if an answer is lost. Each sends the final values, not a difference, and applies
// only to the revision that the page has loaded.

import { call } from "./api.js";

/** Thrown if the job was changed since it was loaded. `job` is its current state. */
export class JobChanged {
  constructor(job) {
    this.job = job;
  }
}

/** Send the change `body` of the job `loaded`. If the answer is lost, fetch the job and use `isMade(job)` to find out whether the change
 * was made, so that it is not made twice. Throw JobChanged, or a Problem if the service refuses or does not answer. */
export async function changeJob(loaded, body, isMade) {
  const path = `/jobs/${loaded.id}`;
  const send = () => call(path, { method: "PATCH", body, headers: { "If-Match": `"${loaded.revision}"` } });
  try {
    return await send();
  } catch (error) {
    if (error.status !== 412 && error.status !== 0) throw error;
    const now = await call(path);
    if (isMade(now)) return now;
    if (now.revision !== loaded.revision) throw new JobChanged(now);
    return send();
  }
}

/** Pause, resume or cancel a job. After a lost answer the request is repeated unless the job is already in the requested state. */
export async function requestControl(id, name) {
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
