// A job, live.

import { call, onChanged } from "./api.js";
import { Actions } from "./actions.js";
import { Answer } from "./answer.js";
import { Curves } from "./curves.js";
import { atMost, fill, h, text } from "./dom.js";
import { duration, figure, short, state, usd } from "./format.js";
import { Model } from "./model.js";
import { bill, BestCurve } from "./money.js";
import { follow } from "./stream.js";
import { show, Trials } from "./trials.js";

const LIVE = {
  connecting: "Connecting…",
  live: "● Live",
  lost: "◌ The connection is lost; trying again. Nothing will be missing.",
  ended: "○ The job has ended",
  refused: "The service refuses to tell more; load the page again",
};

/** Shows a job in `main` until what is returned is called. Raises Problem. */
export async function jobPage(main, id) {
  const page = new JobPage(await call(`/jobs/${id}`));
  fill(main, page.node);
  document.title = `${page.model.job.name} · tuner`;
  page.begin();
  return () => page.end();
}

class JobPage {
  constructor(job) {
    this.model = new Model(job);
    const open = (trial) => show(this.model, trial.id);
    this.curves = new Curves(this.model, open);
    this.best = new BestCurve(this.model);
    this.answer = new Answer(this.model);
    this.trials = new Trials(this.model);
    this.actions = new Actions(this.model, (job) => this.acted(job));
    this.bill = h("div");
    this.live = h("p", { class: "live" }, LIVE.connecting);
    this.state = h("span", { class: "state" });
    this.detail = h("p", { class: "soft" });
    this.meter = h("progress", { max: 1, "aria-label": "Spent of the budget" });
    this.money = h("span");
    this.facts = h("dl", { class: "facts" });
    const part = (title, ...content) => h("section", { "aria-label": title }, h("h2", {}, title), content);
    this.links = h("p", { class: "links" });
    this.node = h("div", {},
      h("h1", { tabindex: "-1" }, job.name, " ", this.state),
      h("p", { class: "soft" }, h("code", {}, job.id), " · ", job.trainable), this.detail, this.live,
      h("div", { class: "taximeter" }, this.meter, this.money), this.facts, this.actions.node, this.links,
      part("Learning curves", this.curves.node),
      h("div", { class: "two" }, part("Best against dollars", this.best.node), part("What can I get for my money?", this.answer.node)),
      part("The bill", this.bill), part("Trials", this.trials.node));
  }

  begin() {
    for (const part of [this.curves, this.best, this.answer]) part.begin();
    this.draw = new Pixels(() => this.update());
    this.refresh = atMost(2000, () => this.fetch());
    this.standing();
    this.update();
    this.fetch();
    this.listen();
    this.unheard = onChanged((job) => { if (job === this.model.job.id) this.look(); });
    this.looking = setInterval(() => { if (this.over) this.look(); }, 10_000);
  }

  end() {
    this.stop();
    this.unheard();
    clearInterval(this.looking);
    this.draw.stop();
    this.refresh.stop();
    for (const part of [this.curves, this.best, this.answer]) part.end();
  }

  listen() {
    this.stop?.();
    this.over = false;
    this.stop = follow(this.model.job.id, {
      message: (kind, data) => this.told(kind, data),
      state: (name) => {
        this.over = name === "ended";
        text(this.live, LIVE[name]);
        this.live.dataset.state = name;
        this.draw.asked();
      },
    });
  }

  told(kind, data) {
    if (kind === "trial" && data.preemptions > (this.model.trials.get(data.id)?.preemptions ?? 0)) this.findLosses(data.id);
    this.model.tell(kind, data);
    this.draw.asked();
    this.refresh();
  }

  /** Of an action here, or in another tab: a job that had ended may go on. */
  acted(job) {
    this.model.job = { ...this.model.job, ...job };
    this.standing();
    if (this.over && !["succeeded", "cancelled", "failed"].includes(job.state)) this.listen();
  }

  async look() {
    try {
      this.acted(await call(`/jobs/${this.model.job.id}`));
    } catch { /* the stream says that the connection is lost */ }
  }

  /** Where machines were taken away from a trial, one request at a time. */
  findLosses(id) {
    this.losses = (this.losses ?? Promise.resolve()).then(async () => {
      const found = await call(`/jobs/${this.model.job.id}/trials/${id}`);
      this.model.lost.set(id, found.attempt_list.filter((one) => one.end === "preempted").map((one) => one.to_step));
      this.draw.asked();
    }).catch(() => {});
  }

  update() {
    this.standing();
    this.curves.update();
    this.trials.update();
    this.best.extend();
  }

  standing() {
    const { job } = this.model, { spend, budget, progress, best } = job;
    text(this.state, state(job.state, job.stop_reason));
    this.state.className = `state ${job.state}`;
    text(this.detail, job.detail ?? "");
    this.meter.value = progress.budget_used;
    text(this.money, budget.usd === null ? `${usd(spend.usd)} spent, ${figure(spend.gpu_hours)} of ${figure(budget.gpu_hours)} GPU-hours`
      : `${usd(spend.usd)} of ${usd(budget.usd)} spent, ${usd(Math.max(0, budget.usd - spend.usd))} left`);
    const counts = Object.entries(progress.trials).filter(([, count]) => count > 0).map(([name, count]) => `${count} ${name}`);
    const facts = [
      [`Best ${job.objective.metric}`, best === null ? "–" : `${figure(best.metric)} (trial ${short(best.trial)}, step ${best.step})`],
      ["Held", usd(spend.held_usd)], ["Running for", duration(progress.running_seconds)],
      [job.fidelity.unit === "step" ? "Steps" : `Steps (${job.fidelity.unit}s)`, String(progress.steps)], ["Trials", counts.join(", ") || "none yet"],
    ];
    facts.forEach(([name, value], index) => {
      const node = this.facts.children[index] ?? this.facts.appendChild(h("div", {}, h("dt"), h("dd")));
      text(node.children[0], name);
      text(node.children[1], value);
    });
    const links = Object.entries({ "Ray dashboard": job.links.ray_dashboard, "Optuna dashboard": job.links.optuna_dashboard })
      .filter(([, url]) => url && (url.startsWith("/") || /^https?:/.test(url)));
    if (this.links.childElementCount !== links.length)
      fill(this.links, links.map(([name, url]) => h("a", { href: url, target: "_blank", rel: "noopener" }, name)));
    this.actions.update();
  }

  /** What is computed by the service: not for each event, but every two seconds in which there were some. */
  async fetch() {
    const of = `/jobs/${this.model.job.id}`;
    const parts = [["report", (found) => this.best.show(found)], ["pareto", (found) => this.answer.show(found)], ["bill", (found) => this.showBill(found)]];
    for (const [name, put] of parts) {
      try {
        put(await call(`${of}/${name}`));
      } catch { /* asked again with the next event, and the stream says that the connection is lost */ }
    }
  }

  showBill(found) {
    const open = this.bill.querySelector("details")?.open;
    fill(this.bill, bill(found));
    if (open) this.bill.querySelector("details").open = true;
  }
}

/** Draws in the next frame, and where drawing takes long, no more than a third of the time. */
class Pixels {
  constructor(act) {
    this.act = act;
    this.waiting = null;
    this.took = 0;
  }

  asked() {
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
