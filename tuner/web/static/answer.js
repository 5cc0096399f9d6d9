// "I can spend $…": the Pareto front of metric against cost, and the best configuration for an amount.

import { call } from "./api.js";
import { chart, colour, axisRange } from "./chart.js";
import { atMost, fill, h, loading, problem, table } from "./dom.js";
import { dollars, duration, figure, short, usd } from "./format.js";

const STEPS = 500;

export class Answer {
  constructor(model) {
    this.model = model;
    this.front = [];
    this.amount = null; // in dollars; null until the Pareto front has a point
    this.isChosen = false; // whether the user has chosen the amount; until then it follows the cost of the best configuration
    this.turn = 0;
    this.place = h("div", { class: "chart", role: "img", "aria-label": "The Pareto front of metric against cost: no other point is better in both." });
    this.tradeoffPlace = h("div", { class: "chart", role: "img", "aria-label": "Both metrics of the Pareto front." }); // of a job with two objectives
    this.slider = h("input", { type: "range", id: "amount", min: 0, max: STEPS, value: STEPS, oninput: () => { this.isChosen = true; this.choose(this.slider.value / STEPS * this.maxAmount()); } });
    this.number = h("input", { type: "number", id: "amount-exact", min: 0, step: "any", inputmode: "decimal", oninput: () => { this.isChosen = true; this.choose(Number(this.number.value), true); } });
    this.answer = h("div", { class: "answer", "aria-live": "polite" }, loading());
    this.tableRows = h("div");
    this.requestSoon = atMost(150, () => this.requestBest());
    this.node = h("div", {}, this.place,
      h("div", { class: "choice" },
        h("label", { for: "amount" }, "I can spend"), this.slider,
        h("label", { for: "amount-exact", class: "visually-hidden" }, "Dollars, exactly"), h("span", { class: "dollars" }, "$", this.number)),
      this.answer, this.tradeoffPlace,
      h("details", {}, h("summary", {}, "The Pareto front as a table"), this.tableRows));
  }

  begin() {
    this.chart = chart(this.place, {
      x: "dollars to train it", y: this.model.job.objective.metric, formatX: dollars, formatY: figure, height: 240,
      series: [{ stroke: () => colour("running"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: true, size: 7, fill: () => colour("running") } }],
      scales: { x: { range: () => [0, this.maxAmount()] }, y: { range: (_, low, high) => axisRange(low, high) } },
      hooks: { draw: [(plot) => this.drawAmount(plot)] },
    });
    const second = this.model.job.objectives?.[1];
    if (!second) return;
    this.tradeoff = chart(this.tradeoffPlace, {
      x: second.metric, y: this.model.job.objective.metric, formatX: figure, formatY: figure, height: 240,
      series: [{ stroke: () => colour("running"), paths: () => null, points: { show: true, size: 7, fill: () => colour("running") } }],
      scales: { x: { range: (_, low, high) => axisRange(low, high) }, y: { range: (_, low, high) => axisRange(low, high) } },
    });
  }

  end() {
    this.requestSoon.stop();
    this.chart?.end();
    this.tradeoff?.end();
  }

  maxAmount() {
    return (this.front[this.front.length - 1]?.cost_usd ?? 1) * 1.1;
  }

  show({ items, second_metric: second }) {
    this.front = items;
    this.slider.disabled = this.number.disabled = items.length === 0;
    if (items.length === 0) {
      fill(this.answer, h("p", {}, "Nothing has been reported yet."));
      return;
    }
    const { objective } = this.model.job, line = improving(items, objective.mode), names = second ? [objective.metric, second] : [objective.metric];
    this.chart.set([line.map((point) => point.cost_usd), line.map((point) => point.metric)]);
    if (second) {
      const sorted = [...items].sort((a, b) => a.metrics[second] - b.metrics[second]);
      this.tradeoff.set([sorted.map((point) => point.metrics[second]), sorted.map((point) => point.metric)]);
    }
    fill(this.tableRows, table("The Pareto front of metric against cost", ["Cost to train", ...names, "Trial", "Step"],
      items.map((point) => [usd(point.cost_usd), figure(point.metric), ...(second ? [figure(point.metrics[second])] : []), short(point.trial), point.step]),
      { numeric: [0, ...names.map((_, index) => index + 1), names.length + 2] }));
    if (!this.isChosen) this.choose(this.maxAmount());
    else { this.moveSlider(); this.requestSoon(); }
  }

  fail(error) {
    fill(this.answer, problem(error));
  }

  choose(amount, typed = false) {
    this.amount = Math.max(0, Math.floor(amount * 1e6) / 1e6);
    if (!typed) this.number.value = String(Number(this.amount.toFixed(6)));
    this.moveSlider(typed);
    this.chart.plot.redraw(false);
    this.requestSoon();
  }

  moveSlider() {
    if (document.activeElement !== this.slider) this.slider.value = String(Math.round((this.amount / this.maxAmount()) * STEPS));
    this.slider.setAttribute("aria-valuetext", usd(this.amount));
  }

  drawAmount(plot) {
    if (this.amount === null) return;
    const { ctx } = plot, { top, height } = plot.bbox, x = plot.valToPos(Math.min(this.amount, this.maxAmount()), "x", true);
    ctx.save();
    ctx.strokeStyle = colour("best");
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.restore();
  }

  /** Request the best configuration for the chosen amount. An answer that arrives after a newer request was sent is dropped. */
  async requestBest() {
    const turn = (this.turn += 1);
    let shown;
    try {
      shown = this.describe(await call(`/jobs/${this.model.job.id}/best?forecast=false&max_cost_usd=${this.amount.toFixed(6)}`));
    } catch (error) {
      shown = problem(error);
      if (error.status === 404) shown.removeAttribute("role");
    }
    if (turn === this.turn) fill(this.answer, shown);
  }

  describe(best) {
    const { next_better: next } = best, { metric } = this.model.job.objective;
    return [
      h("p", { class: "big" }, `${metric} ${figure(best.metric)}`, h("span", { class: "soft" }, ` for ${usd(best.cost_usd)}`)),
      h("p", {}, `Trial ${short(best.trial)} at step ${best.step}, ${duration(best.duration_seconds)} of training.`,
        next ? ` The next better one reaches ${figure(next.metric)} for ${usd(next.cost_usd)}.` : " Nothing better was found at any cost."),
      config(best.config),
    ];
  }
}

/** Return the points of a Pareto front whose metric is better than that of all cheaper points, cheapest first. With two objectives, a front
 * also has other points. */
export function improving(items, mode) {
  let best = null;
  return items.filter(({ metric }) => (best === null || (mode === "max" ? metric > best : metric < best)) && ((best = metric), true));
}

/** Show a configuration. Integers are not rounded, because one may be a seed. */
export function config(values) {
  const shown = (value) => (Number.isInteger(value) ? String(value) : figure(value));
  return h("dl", { class: "config" }, Object.entries(values ?? {}).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, shown(value)))));
}
