// The leaders' table, and one trial with its configuration, bill and attempts.

import { call } from "./api.js";
import { config } from "./answer.js";
import { fill, h, keyed, problem, table, text } from "./dom.js";
import { duration, figure, short, state, usd, when } from "./format.js";
import { KINDS } from "./money.js";

const PAGE = 25;

export class Trials {
  constructor(model) {
    this.model = model;
    this.count = PAGE;
    this.body = h("tbody");
    this.more = h("button", { type: "button", class: "quiet", onclick: () => { this.count += 4 * PAGE; this.update(); } }, "Show more");
    const head = (words, number) => h("th", { scope: "col", class: number ? "number" : null }, words);
    this.node = h("div", {},
      h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Trials, the best first" },
        h("table", {}, h("caption", { class: "unseen" }, "Trials, the best first"),
          h("thead", {}, h("tr", {}, head("Trial"), head("State"), head("Best", true), head("Newest", true), head("Steps", true), head("Cost", true), head("Attempts", true), head("Preempted", true))),
          this.body)),
      this.more);
  }

  update() {
    const all = this.model.leaders();
    keyed(this.body, all.slice(0, this.count), (trial) => trial.id, (trial) => this.row(trial), (node, trial) => {
      const cells = [state(trial.state), figure(trial.best), figure(trial.metric), String(trial.steps), usd(trial.cost_usd), String(trial.attempts), String(trial.preemptions)];
      cells.forEach((value, index) => text(node.children[index + 1], value));
      node.className = trial.state;
    });
    this.more.hidden = all.length <= this.count;
  }

  row(trial) {
    return h("tr", {},
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => show(this.model, trial.id) }, h("span", { class: "unseen" }, "Trial "), short(trial.id))),
      h("td"), Array.from({ length: 6 }, () => h("td", { class: "number" })));
  }
}

/** One trial, in a dialog. */
export async function show(model, id) {
  const job = model.job.id, body = h("div", {}, h("p", {}, "Loading…"));
  const dialog = h("dialog", { "aria-label": `Trial ${short(id)}`, onclose: () => dialog.remove() },
    h("form", { method: "dialog" }, h("h2", {}, `Trial ${short(id)}`), h("button", { class: "quiet", autofocus: true }, "Close")), body);
  document.body.append(dialog);
  dialog.showModal();
  try {
    fill(body, told(await call(`/jobs/${job}/trials/${id}`), model));
  } catch (error) {
    fill(body, problem(error));
  }
}

function told(trial, model) {
  const attempts = trial.attempt_list.map((one) => [
    one.attempt, one.end === null ? "running" : one.end.replaceAll("_", " "), one.reason || one.detail ? `${one.reason} ${one.detail}`.trim() : "",
    `${one.from_step} → ${one.to_step}`, one.market.replaceAll("_", " "), usd(one.usd_per_hour),
    usd(Object.values(one.bill).reduce((sum, part) => sum + part, 0)), when(one.began_at), when(one.ended_at), one.node ?? "–",
  ]);
  return [
    h("p", {}, `${state(trial.state, trial.reason)}: ${model.job.objective.metric} ${figure(trial.metric)} at step ${trial.steps}, for ${usd(trial.cost_usd)}.`),
    h("h3", {}, "Configuration"), config(trial.config),
    h("h3", {}, "Bill"),
    table("Its bill by kind", ["Kind", "Cost"], KINDS.map((kind) => [kind, usd(trial.bill[kind] ?? 0)]), { numeric: [1] }),
    h("h3", {}, "Attempts"),
    table("Its attempts", ["Attempt", "End", "Why", "Steps", "Market", "An hour", "Cost", "Began", "Ended", "Node"], attempts, { numeric: [0, 5, 6] }),
    h("h3", {}, "Learning curve"),
    table("Its learning curve", ["Step", "Metric", "Cost", "Time"],
      trial.curve.map((point) => [point.step, figure(point.metric), usd(point.cost_usd), duration(point.duration_seconds)]), { numeric: [0, 1, 2, 3] }),
  ];
}
