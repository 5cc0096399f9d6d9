// The summary of a job: the best trial, the money spent, held and left, the rate of spending, the expected end, and the expected gain of
// a larger budget.

import { h, text } from "./dom.js";
import { dollars, duration, figure, metered, share, short, usd } from "./format.js";

const WINDOW_S = 60, ENOUGH_S = 10;
const RUNNING = ["running", "queued"], FINAL = ["succeeded", "cancelled", "failed"];

export class Meter {
  constructor(model) {
    this.model = model;
    this.samples = []; // [running seconds, dollars] of the last minute
    this.best = h("p", { class: "huge" }, "–");
    this.leader = h("p", { class: "soft" });
    this.since = h("p", { class: "soft" });
    this.spent = h("p", { class: "huge" });
    this.left = h("p", { class: "taximeter" });
    this.bar = h("div", { class: "meter", role: "meter", "aria-label": "Spent of the budget", "aria-valuemin": "0", "aria-valuemax": "1" },
      h("span", { class: "spent" }), h("span", { class: "held" }));
    this.pace = h("p", {});
    this.next = h("p", { class: "huge" }, "–");
    this.why = h("p", { class: "soft" });
    this.stop = h("p", { class: "soft" });
    const card = (title, ...content) => h("section", { "aria-label": title }, h("h2", {}, title), content);
    this.lead = card("Best so far", this.best, this.leader, this.since);
    this.node = h("div", { class: "board" },
      this.lead, card("The meter", this.spent, this.bar, this.left, this.pace),
      card("The next dollar", this.next, this.why, this.stop));
  }

  update() {
    const { job } = this.model, { spend, budget, progress } = job, leader = this.model.leader();
    const metric = job.objective.metric;
    const title = FINAL.includes(job.state) ? "Best" : "Best so far";
    text(this.lead.firstChild, title);
    this.lead.setAttribute("aria-label", title);
    text(this.best, leader ? `${figure(leader.metric)}` : "–");
    text(this.leader, leader ? `${metric}, by trial ${short(leader.trial)} at step ${leader.step}` : `${metric}: ${FINAL.includes(job.state) ? "nothing was reported" : "nothing has been reported yet"}`);
    this.sample(progress.running_seconds, spend.usd);
    const scale = budget.usd ?? Math.max(spend.usd, 0.01);
    text(this.spent, `${metered(spend.usd, scale)}`);
    const used = Math.min(1, budget.usd ? spend.usd / budget.usd : progress.budget_used), held = budget.usd ? Math.min(1 - used, spend.held_usd / budget.usd) : 0;
    this.bar.children[0].style.setProperty("width", `${100 * used}%`);
    this.bar.children[1].style.setProperty("width", `${100 * held}%`);
    this.bar.setAttribute("aria-valuenow", used.toFixed(4));
    this.bar.setAttribute("aria-valuetext", `${share(used)} spent`);
    text(this.left, budget.usd === null
      ? `spent, ${metered(spend.held_usd, scale)} held, ${figure(spend.gpu_hours)} of ${figure(budget.gpu_hours)} GPU-hours`
      : `of ${usd(budget.usd)} spent, ${metered(spend.held_usd, scale)} held, ${metered(Math.max(0, budget.usd - spend.usd - spend.held_usd), scale)} left`);
    text(this.pace, this.paceWords());
  }

  sample(seconds, dollars) {
    const last = this.samples[this.samples.length - 1];
    if (last && (seconds < last[0] || dollars < last[1])) this.samples = [];
    else if (last && seconds === last[0]) this.samples.pop();
    this.samples.push([seconds, dollars]);
    while (this.samples.length > 2 && seconds - this.samples[1][0] > WINDOW_S) this.samples.shift();
  }

  /** Return the rate of spending in dollars per hour over the last minute. Until that is known, return the rate over the whole running time. */
  rate() {
    const [first, last] = [this.samples[0], this.samples[this.samples.length - 1]];
    const over = last[0] - first[0];
    if (over >= ENOUGH_S && last[1] > first[1]) return ((last[1] - first[1]) / over) * 3600;
    return last[0] > 0 && last[1] > 0 ? (last[1] / last[0]) * 3600 : null;
  }

  paceWords() {
    const { job } = this.model, { spend, budget, progress } = job, rate = this.rate();
    if (!RUNNING.includes(job.state)) {
      const mean = progress.running_seconds > 0 ? ` ${usd((spend.usd / progress.running_seconds) * 3600)} an hour on average.` : "";
      return job.state === "paused" ? `Paused: no money is spent.${mean}` : `The job ran for ${duration(progress.running_seconds)}.${mean}`;
    }
    if (rate === null) return job.queue_position ? `The job waits at position ${job.queue_position} in the queue. No money is spent.` : "No money has been spent yet.";
    const ends = [];
    if (budget.usd !== null) ends.push(((budget.usd - spend.usd) / rate) * 3600);
    if (budget.wall_clock !== null) ends.push(budget.wall_clock - progress.running_seconds);
    if (budget.gpu_hours !== null && spend.gpu_hours > 0) ends.push(((budget.gpu_hours - spend.gpu_hours) / spend.gpu_hours) * progress.running_seconds);
    return `${usd(rate)} an hour${ends.length ? `: at this rate it ends in about ${duration(Math.max(0, Math.min(...ends)))}.` : "."}`;
  }

  /** Show how much was spent since the best metric improved, from the job's report. */
  showReport(report) {
    const idle = report.best_spent_usd === null || !report.spent_usd ? null : Math.max(0, report.spent_usd - report.best_spent_usd);
    const isInherited = report.inherited !== null && report.best.step <= report.inherited.step;
    if (isInherited) text(this.since, `Reached by ${report.inherited.job}, whose trial this job continued.`);
    else text(this.since, idle === null ? "" : `Found after ${usd(report.best_spent_usd)} was spent. The ${usd(idle)} spent since then (${share(idle / report.spent_usd)}) found nothing better.`);
  }

  /** Show the expected gain of more training, from the answer of `best`. */
  showBest({ next_dollar: { forecast } }) {
    const [first, second] = forecast?.items ?? [], sign = this.model.lowerIsBetter ? "−" : "+";
    text(this.next, first ? `${sign}${figure(Math.abs(first.expected_gain))} for ${usd(first.extra_usd)}` : "–");
    text(this.why, first
      ? `Trial ${short(first.trial)}, trained further from step ${first.from_step} to ${first.to_step}, is expected to end at ${figure(first.expected_metric)} (${figure(first.low_metric)} to ${figure(first.high_metric)}).`
      : forecast?.reason ? `Not known: ${forecast.reason}.` : "Not known yet.");
    const points = forecast?.points_per_usd ?? null;
    let micros = 1e6; // the largest of $1, $0.1, $0.01 and so on that is expected to gain at most one point
    while (micros > 1 && points * micros > 1e6) micros /= 10;
    text(this.stop, [
      points === null ? "" : `The next ${dollars(micros / 1e6)} is expected to gain ${figure((points * micros) / 1e6)} points (each 0.01).`,
      second ? `Next best: trial ${short(second.trial)}, ${sign}${figure(Math.abs(second.expected_gain))} for ${usd(second.extra_usd)}.` : "",
    ].filter(Boolean).join(" "));
  }

  showNoBest() {
    text(this.next, "–");
    text(this.why, "Not known until trials have reported.");
    text(this.stop, "");
  }
}
