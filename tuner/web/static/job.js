// The page of one job, updated live.

import { call, onJobChanged } from "./api.js";
import { Actions } from "./actions.js";
import { Answer } from "./answer.js";
import { Curves } from "./curves.js";
import { announce, atMost, fill, h, loading, problem, text } from "./dom.js";
import { Exports } from "./exports.js";
import { Failure, showAdvice } from "./failure.js";
import { stateWord } from "./filter.js";
import { duration, figure, short, state } from "./format.js";
import { Meter } from "./meter.js";
import { Model } from "./model.js";
import { billDisplay, BestCurve } from "./money.js";
import { Stored } from "./stored.js";
import { follow } from "./stream.js";
import { show } from "./trial.js";
import { Trials } from "./trials.js";

const FINAL = ["succeeded", "cancelled", "failed"];
const KIND_LABELS = { optuna: " · an Optuna objective", ray_tune: " · a Ray Tune function" };
const BEST_MS = 5000, COMPUTED_MS = 15_000, FORECAST_MS = 30_000;

const LIVE = {
  connecting: "Connecting…",
  live: "● Live",
  lost: "◌ The connection is lost; trying again. No update will be missed.",
  ended: "○ The job has ended",
  refused: "The service refuses further requests; load the page again",
};

/** Show a job in `main`. Return a function that removes it. `view` is the sort order and filter of its trials from the address. Throw a
 * Problem if the job cannot be loaded. */
export async function jobPage(main, id, view) {
  const [job, curves] = await Promise.all([call(`/jobs/${id}`), call(`/jobs/${id}/curves`)]);
  const page = new JobPage(job, curves, view);
  fill(main, page.node);
  document.title = `${page.model.job.name} · tuner`;
  page.begin();
  return () => page.end();
}

class JobPage {
  constructor(job, curves, view) {
    this.model = new Model(job);
    this.model.fill(curves);
    this.after = curves.seq;
    this.loaded = new Set(); // the parts of the page that have data
    const open = (trial) => show(this.model, trial.id);
    this.curves = new Curves(this.model, open);
    this.best = new BestCurve(this.model);
    this.answer = new Answer(this.model);
    this.trials = new Trials(this.model, { sort: view.get("sort"), filter: view.get("filter") }, (now) => keepInAddress(job.id, now));
    this.failure = new Failure(this.model);
    this.advice = h("div");
    this.actions = new Actions(this.model, (job) => this.showJob(job));
    this.bill = h("div", {}, loading());
    this.exports = new Exports(this.model);
    this.stored = new Stored(this.model);
    this.live = h("p", { class: "live" }, LIVE.connecting);
    this.state = h("span", { class: "state" });
    this.detail = h("p", { class: "soft" });
    this.meter = new Meter(this.model);
    this.facts = h("dl", { class: "facts" });
    const part = (title, ...content) => h("section", { "aria-label": title }, h("h2", {}, title), content);
    this.links = h("span", { class: "links" });
    this.node = h("div", {},
      h("div", { class: "top" },
        h("div", {}, h("h1", { tabindex: "-1" }, job.name, " ", this.state),
          h("p", { class: "soft" }, h("code", {}, job.id), " · ", job.command ? h("code", {}, job.command) : job.trainable, KIND_LABELS[job.kind], this.links), this.detail, this.live),
        this.actions.node),
      this.failure.node, this.meter.node, this.facts,
      this.charts = h("div", {}, part("Learning curves", this.curves.node),
        h("div", { class: "two" }, part("Best against dollars", this.best.node), part("What can I get for my money?", this.answer.node))),
      part("Trials", this.trials.node), part("The bill", this.bill), this.exports.node, this.stored.node, this.adviceSection = part("Advice", this.advice));
  }

  begin() {
    for (const part of [this.curves, this.best, this.answer, this.exports]) part.begin();
    this.redraw = new RedrawTimer(() => this.update());
    this.refreshComputed = atMost(COMPUTED_MS, () => this.loadAnswers(["pareto", "bill", "report"]));
    this.refreshBest = atMost(BEST_MS, () => this.loadAnswers(["report", "pareto"]));
    this.refreshForecast = atMost(FORECAST_MS, () => this.loadForecast());
    this.ticking = setInterval(() => this.tick(), 1000);
    this.update();
    this.refreshComputed();
    this.refreshForecast();
    this.listen();
    this.stopListening = onJobChanged((job) => { if (job === this.model.job.id) this.reloadJob(); });
    this.reloading = setInterval(() => { if (this.hasEnded) this.reloadJob(); }, 10_000);
  }

  end() {
    this.stop();
    this.stopListening();
    clearInterval(this.reloading);
    this.redraw.stop();
    for (const soon of [this.refreshComputed, this.refreshBest, this.refreshForecast]) soon.stop();
    clearInterval(this.ticking);
    for (const part of [this.curves, this.best, this.answer, this.exports]) part.end();
  }

  listen() {
    this.stop?.();
    this.hasEnded = false;
    this.stop = follow(this.model.job.id, {
      after: this.after,
      message: (kind, data) => this.onMessage(kind, data),
      state: (name) => {
        this.hasEnded = name === "ended";
        text(this.live, LIVE[name]);
        this.live.dataset.state = name;
        this.redraw.request();
      },
    });
  }

  onMessage(kind, data) {
    if (kind === "trial" && data.preemptions > (this.model.trials.get(data.id)?.preemptions ?? 0)) this.loadPreemptions(data.id);
    const before = this.model.job;
    this.model.apply(kind, data);
    if (kind === "job") this.announceChanges(before, this.model.job);
    this.redraw.request();
    this.refreshComputed();
    this.refreshForecast();
  }

  /** Announce a new best metric and the end of the job, but not every report. */
  announceChanges(before, now) {
    const oldBest = before.best, best = now.best;
    if (best !== null && (oldBest === null || oldBest.trial !== best.trial || oldBest.step !== best.step)) {
      announce(`New best: ${now.objective.metric} ${figure(best.metric)}, by trial ${short(best.trial)}.`);
      this.refreshBest();
    }
    if (before.state !== now.state) {
      announce(`The job is ${state(now.state, now.stop_reason)}.`);
      if (FINAL.includes(now.state)) this.loadAnswers(["pareto", "bill", "report"]);
      if (now.state === "running") this.reloadJob(); // the link to Ray's dashboard is not in the events
    }
  }

  /** Update the clock between events. */
  tick() {
    const { progress, state: now } = this.model.job;
    if (now !== "running" || progress.running_seconds === 0 || document.hidden) return;
    const at = performance.now();
    if (this.clock?.of !== progress) this.clock = { of: progress, began: at };
    text(this.running, duration(progress.running_seconds + (at - this.clock.began) / 1000));
  }

  /** Show the job after an action in this or another tab. The action may have resumed a job that had ended. An export changes the bill of
   * such a job. */
  showJob(job) {
    const spentBefore = this.model.job.spend.usd;
    this.model.job = { ...this.model.job, ...job };
    this.showState();
    this.meter.update();
    if (this.hasEnded && !FINAL.includes(job.state)) this.listen();
    if (this.model.job.spend.usd !== spentBefore) this.refreshComputed();
    this.refreshForecast();
  }

  async reloadJob() {
    try {
      this.showJob(await call(`/jobs/${this.model.job.id}`));
      this.exports.load();
    } catch { /* the page already says if the connection is lost */ }
  }

  /** Load at which steps a trial was preempted, with one request at a time. */
  loadPreemptions(id) {
    this.preemptionsLoading = (this.preemptionsLoading ?? Promise.resolve()).then(async () => {
      const trial = await call(`/jobs/${this.model.job.id}/trials/${id}`);
      this.model.lostAt.set(id, trial.attempt_list.filter(({ end }) => end === "preempted").map(({ to_step: step }) => step));
      this.redraw.request();
    }).catch(() => {});
  }

  update() {
    this.showState();
    this.meter.update();
    this.curves.update();
    this.trials.update();
    this.best.extend();
  }

  showState() {
    const { job } = this.model, { progress } = job;
    const hasEnded = FINAL.includes(job.state), hasFailed = job.state === "failed";
    text(this.state, state(job.state, job.stop_reason));
    this.state.className = `state ${job.state}`;
    text(this.detail, hasFailed ? "" : job.detail ?? "");
    this.failure.update();
    this.charts.hidden = hasFailed && job.best === null;
    this.adviceSection.hidden = !hasEnded || hasFailed;
    if (!this.adviceSection.hidden && !this.isAdviceShown) showAdvice(this.advice, job.id);
    this.isAdviceShown = !this.adviceSection.hidden;
    const counts = Object.entries(progress.trials).filter(([, count]) => count > 0).map(([name, count]) => `${count} ${stateWord({ state: name }, hasEnded)}`);
    const facts = [
      ["Running for", duration(progress.running_seconds)],
      [job.fidelity.unit === "step" ? "Steps" : `Steps (${job.fidelity.unit}s)`, progress.steps.toLocaleString("en-US")],
      ["Trials", counts.join(", ") || "none yet"], ["At once", job.resources.pack > 1 ? `${job.concurrency}, up to ${job.resources.pack} on each worker` : String(job.concurrency)], ["Priority", String(job.priority)],
      ["Tags", Object.entries(job.tags).map(([name, value]) => `${name}: ${value}`).join(", ") || "none"],
    ];
    facts.forEach(([name, value], index) => {
      const node = this.facts.children[index] ?? this.facts.appendChild(h("div", {}, h("dt"), h("dd")));
      text(node.children[0], name);
      text(node.children[1], value);
    });
    this.running = this.facts.children[0].children[1];
    const links = Object.entries({ "Ray dashboard": job.links.ray_dashboard, "Optuna dashboard": job.links.optuna_dashboard })
      .filter(([, url]) => url && (url.startsWith("/") || /^https?:/.test(url)));
    const shown = [...this.links.children].map((link) => link.getAttribute("href"));
    if (shown.join() !== links.map(([, url]) => url).join())
      fill(this.links, links.map(([name, url]) => h("a", { href: url, target: "_blank", rel: "noopener" }, `${name} ↗`)));
    for (const part of [this.actions, this.exports, this.stored]) part.update();
  }

  /** Load the parts that the service computes: after a new best metric, and otherwise every 15 seconds if there were events. */
  async loadAnswers(names) {
    const show = { pareto: (answer) => { this.answer.show(answer); this.exports.showTraining(answer); }, bill: (answer) => this.showBill(answer),
      report: (answer) => { this.best.show(answer); this.meter.showReport(answer); } };
    const failed = { pareto: (error) => this.answer.fail(error), bill: (error) => fill(this.bill, problem(error)), report: (error) => this.best.fail(error) };
    for (const name of names) {
      try {
        show[name](await call(`/jobs/${this.model.job.id}/${name}`));
        this.loaded.add(name);
      } catch (error) {
        // Old content remains, and is loaded again after the next event. The page already says if the connection is lost.
        if (!this.loaded.has(name)) failed[name](error);
      }
    }
  }

  async loadForecast() {
    try {
      this.meter.showBest(await call(`/jobs/${this.model.job.id}/best`));
    } catch (error) {
      if (error.status === 404) this.meter.showNoBest();
    }
  }

  showBill(answer) {
    const isOpen = this.bill.querySelector("details")?.open;
    fill(this.bill, billDisplay(answer));
    if (isOpen) this.bill.querySelector("details").open = true;
  }
}

/** Write the sort order and the filter to the address, so that a reload or a shared link shows the same trials. */
function keepInAddress(job, { sort, filter }) {
  const words = new URLSearchParams(Object.entries({ sort, filter }).filter(([, value]) => value !== "")).toString();
  history.replaceState(null, "", `#/jobs/${job}${words && `?${words}`}`);
}

/** Schedules drawing in the next frame. Slow drawing uses at most a third of the time. */
class RedrawTimer {
  constructor(act) {
    this.act = act;
    this.waiting = null;
    this.took = 0;
  }

  request() {
    if (this.waiting !== null) return;
    this.waiting = setTimeout(() => {
      this.waiting = null;
      const began = performance.now();
      this.act();
      this.took = performance.now() - began;
    }, Math.min(300, Math.max(16, 2 * this.took)));
  }

  stop() {
    clearTimeout(this.waiting);
  }
}
