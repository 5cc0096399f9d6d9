// Why a job failed: the reason, the traceback of a trial that failed for this reason, and advice.

import { call } from "./api.js";
import { fill, h, loading, problem, text } from "./dom.js";
import { short, usd } from "./format.js";
import { show } from "./trial.js";

const FRAMES = 3;
// Frames that are not the user's code: Python's library, installed packages, and the code of this service.
const NOT_USER_CODE = /site-packages\/|dist-packages\/|\/lib\/python\d[\d.]*\/|\/tuner\/(worker|training)\/|^</;

export class Failure {
  constructor(model) {
    this.model = model;
    this.reason = h("p", { class: "big" });
    this.tracebackPlace = h("div");
    this.advice = h("div");
    this.node = h("section", { class: "failure", "aria-label": "Why it failed", hidden: true },
      h("h2", {}, "Why it failed"), this.reason, this.tracebackPlace, this.advice);
  }

  /** Show the failure while the job's state is failed. */
  update() {
    const { job } = this.model, isShown = !this.node.hidden;
    this.node.hidden = job.state !== "failed";
    if (this.node.hidden) return;
    text(this.reason, capitalize(job.detail || "no reason was recorded; the service's log may have one"));
    if (isShown) return;
    this.showTraceback();
    showAdvice(this.advice, job.id, "h3");
  }

  async showTraceback() {
    const trial = responsibleTrial(this.model);
    if (trial === undefined) return;
    fill(this.tracebackPlace, loading("Loading the traceback…"));
    try {
      const details = await call(`/jobs/${this.model.job.id}/trials/${trial.id}`);
      const attempt = details.attempt_list.filter(({ detail, reason }) => detail || reason).pop();
      const button = h("button", { type: "button", class: "link", onclick: () => show(this.model, trial.id) }, `Trial ${short(trial.id)}`);
      fill(this.tracebackPlace, h("p", {}, button, ` failed with this${attempt ? `, in attempt ${attempt.attempt}, after step ${attempt.to_step}` : ""}.`),
        attempt?.detail ? traceback(attempt.detail) : null);
    } catch (error) {
      fill(this.tracebackPlace, problem(error));
    }
  }
}

/** Return the first trial whose reason of failure is also the job's, or the first failed trial if no reason is the same. */
function responsibleTrial(model) {
  const failed = [...model.trials.values()].filter((trial) => trial.state === "failed").sort((a, b) => a.number - b.number);
  return failed.find((trial) => trial.reason && model.job.detail?.includes(trial.reason)) ?? failed[0];
}

function traceback(words) {
  const { frames, error } = lastFrames(words);
  const whole = h("pre", { class: "log wraps", tabindex: "0", role: "region", "aria-label": "The whole traceback" }, words);
  if (frames.length === 0) return whole;
  return [
    h("pre", { class: "log wraps frames", tabindex: "0", role: "region", "aria-label": "Where it failed" }, [...frames, error].join("\n")),
    h("details", {}, h("summary", {}, "The whole traceback"), whole),
  ];
}

/** Return the last frames of the user's own code in a Python traceback, and its error. If the traceback has no frame of the user's code,
 * return the last frames of any code. */
export function lastFrames(words) {
  const lines = words.slice(Math.max(0, words.lastIndexOf("Traceback (most recent call last):"))).trimEnd().split("\n");
  const frames = [], error = [];
  for (const line of lines) {
    const file = /^ {2}File "([^"]*)", line \d+/.exec(line);
    if (file) frames.push({ file: file[1], lines: [line] });
    else if (frames.length > 0 && error.length === 0 && line.startsWith("    ")) frames[frames.length - 1].lines.push(line);
    else if (frames.length > 0) error.push(line);
  }
  const userFrames = frames.filter((frame) => !NOT_USER_CODE.test(frame.file));
  return { frames: (userFrames.length > 0 ? userFrames : frames).slice(-FRAMES).map((frame) => frame.lines.join("\n")), error: error.join("\n") };
}

/** Show what would have made a job cheaper in `place`, below `heading`. */
export async function showAdvice(place, job, heading = null) {
  const head = heading === null ? null : h(heading, {}, "Advice");
  fill(place, head, loading("Loading the advice…"));
  try {
    const { findings } = await call(`/jobs/${job}/advice`);
    fill(place, head, findings.length === 0 ? h("p", { class: "soft" }, "Nothing was found that would have made this job cheaper.")
      : h("ul", { class: "advice" }, findings.map(findingItem)));
  } catch (error) {
    fill(place, head, problem(error));
  }
}

function capitalize(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function findingItem(finding) {
  const { change } = finding, now = change.now === null ? "" : ` (now ${change.now})`;
  return h("li", {}, h("strong", {}, finding.title),
    h("p", {}, h("code", {}, change.setting), `${now}: ${change.then}${change.how && `. ${capitalize(change.how)}`}.`),
    finding.saves_usd === null ? null : h("p", { class: "soft small" }, `It would have saved ${usd(finding.saves_usd)}; confidence: ${finding.confidence}.`));
}
