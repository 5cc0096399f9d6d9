// The job's money: the chart of the best metric against dollars, and the bill by kind.

import { chart, colour, axisRange } from "./chart.js";
import { fill, h, loading, problem, table } from "./dom.js";
import { dollars, figure, share, short, usd } from "./format.js";

export const KINDS = ["setup", "restore", "train", "checkpoint", "lost", "idle", "export"];
const SHOWN = 30;

/** The chart of the best metric against dollars, from a report. `extend` draws the line up to the job's current spend. */
export class BestCurve {
  constructor(model) {
    this.model = model;
    this.place = h("div", { class: "chart", role: "img" });
    this.rows = h("div");
    this.note = h("div", {}, loading());
    this.node = h("div", {}, this.place, this.note, h("details", {}, h("summary", {}, "As a table"), this.rows));
  }

  begin() {
    this.chart = chart(this.place, {
      x: "dollars spent", y: `best ${this.model.job.objective.metric}`, formatX: dollars, formatY: figure, height: 360,
      series: [{ stroke: () => colour("best"), width: 2.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
      scales: { x: { range: (_, low, high) => [0, high || 1] }, y: { range: (_, low, high) => axisRange(low, high) } },
    });
  }

  end() {
    this.chart?.end();
  }

  fail(error) {
    fill(this.note, problem(error));
  }

  show(report) {
    this.curve = report.best_curve;
    fill(this.note, this.curve.length === 0 ? h("p", { class: "soft" }, "Nothing has been reported yet.") : null);
    this.extend();
    const rows = this.curve.map((point) => [usd(point.spent_usd), figure(point.value), short(point.trial), point.step]);
    fill(this.rows, table("Best against dollars", ["Spent", "Best", "Trial", "Step"], rows, { numeric: [0, 1, 3] }));
    const last = this.curve[this.curve.length - 1];
    this.place.setAttribute("aria-label", last
      ? `Best against dollars: ${figure(last.value)} since ${usd(last.spent_usd)} was spent. The table has every step.`
      : "Best against dollars: nothing has been reported yet.");
  }

  extend() {
    if (!this.curve?.length || !this.chart) return;
    const last = this.curve[this.curve.length - 1], now = Math.max(this.model.job.spend.usd, last.spent_usd);
    this.chart.set([[...this.curve.map((point) => point.spent_usd), now], [...this.curve.map((point) => point.value), last.value]]);
  }
}

/** Create a bar of the kinds of cost, each as wide as its share of `whole`. */
function kindsBar(kinds, whole) {
  return h("div", { class: "stack", "aria-hidden": "true" }, KINDS.filter((kind) => kinds[kind] > 0).map((kind) =>
    h("span", { class: `kind ${kind}`, title: `${kind} ${usd(kinds[kind])}`, style: { width: `${(100 * kinds[kind]) / whole}%` } })));
}

/** Create a bar of the kinds of cost with a legend. */
export function kindsWithLegend(costs, total) {
  return [kindsBar(costs, total), h("ul", { class: "legend" }, KINDS.map((kind) => h("li", {},
    h("span", { class: `sign kind ${kind}`, "aria-hidden": "true" }),
    `${kind} ${usd(costs[kind] ?? 0)} (${share((costs[kind] ?? 0) / total)})`)))];
}

/** Show a bill as bars by kind: in total, and for the most expensive trials. */
export function billDisplay(answer) {
  const total = answer.total_usd;
  if (!total) return h("p", {}, "Nothing has been spent yet.");
  const expensive = [...answer.trials].sort((a, b) => b.total_usd - a.total_usd).slice(0, SHOWN);
  const most = expensive[0]?.total_usd || 1;
  const { savings } = answer;
  const facts = [
    ["Spent", usd(total)], ["GPU-hours", figure(answer.gpu_hours)], ["Held", usd(answer.held_usd)],
    ["Paid per completed trial", usd(answer.cost_per_completed_trial_usd)], ["Preemptions", String(answer.preemptions)],
    ["Saved against training all in full", usd(savings.against_full_fidelity_usd)],
    ["Saved against on demand", usd(savings.against_on_demand_usd)],
    ...[["Restore self-test", answer.self_test_usd], ["Exports", answer.exports_usd], ["Spent after the backup that was restored", answer.restored_usd]]
      .filter(([, amount]) => amount > 0).map(([name, amount]) => [name, usd(amount)]),
  ];
  return h("div", {},
    kindsWithLegend(answer.by_kind, total),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("details", {}, h("summary", {}, `The ${expensive.length} most expensive trials`),
      table("The bill of the most expensive trials", ["Trial", "Kinds", "Total", ...KINDS],
        expensive.map((row) => [short(row.trial), kindsBar(row.by_kind, most), usd(row.total_usd), ...KINDS.map((kind) => usd(row.by_kind[kind] ?? 0))]),
        { numeric: [2, 3, 4, 5, 6, 7, 8] })));
}
