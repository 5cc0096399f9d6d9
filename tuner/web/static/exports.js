// The exports of a job: the files made from its trained models, what a million predictions of each cost, and the form to start a new export.

import { improving } from "./answer.js";
import { call, notifyTabs, request } from "./api.js";
import { chart, colour, axisRange } from "./chart.js";
import { askForm } from "./dialog.js";
import { fill, h, keyed, problem, save, showMessage, table, text } from "./dom.js";
import { dollars, figure, short, size, state, usd } from "./format.js";

const FORMATS = { onnx: "ONNX", torch: "PyTorch", "int8-dynamic": "8 bits, dynamic", "int8-static": "8 bits, calibrated", "int4-weight": "weights in 4 bits", pruned: "channels removed", "pruned-unstructured": "single weights zero" };
const STOPPED = ["paused", "succeeded", "cancelled", "failed"], UNFINISHED = ["queued", "running"];
const LOOK_MS = 3000;

export class Exports {
  constructor(model) {
    this.model = model;
    this.path = `/jobs/${model.job.id}/exports`;
    this.items = [];
    this.training = []; // the Pareto front of metric against training dollars, from `/pareto`
    this.button = h("button", { type: "button", onclick: () => this.askNew() }, "Export…");
    this.failed = h("div");
    this.list = h("div");
    this.node = h("section", { "aria-label": "Exports", hidden: true }, h("h2", {}, "Exports"),
      h("p", { class: "soft small" }, "Files of a trained model that run elsewhere, and what a million predictions cost. The job’s budget pays for the export."),
      h("div", { class: "acts" }, this.button), this.failed, this.list);
  }

  begin() {
    this.load();
  }

  end() {
    this.hasEnded = true;
    clearTimeout(this.timer);
    for (const node of this.list.children) node.view.end();
  }

  isUnfinished() {
    return this.items.some((record) => UNFINISHED.includes(record.state));
  }

  /** Load the list of exports, and again three seconds after the answer if an export has not ended. An answer that arrives after a newer
   * request was sent is dropped. */
  async load() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    clearTimeout(this.timer);
    try {
      const { items } = await call(this.path);
      if (turn !== this.turn) return;
      fill(this.failed);
      this.items = items;
      this.show();
    } catch (error) {
      if (turn === this.turn) fill(this.failed, problem(error));
    }
    this.update();
    if (turn === this.turn) this.schedule();
  }

  schedule() {
    if (this.hasEnded || !this.isUnfinished()) return;
    this.timer = setTimeout(() => (document.hidden ? this.schedule() : this.load()), LOOK_MS);
  }

  show() {
    keyed(this.list, this.items, (record) => record.id, () => new ExportView(this).node, (node, record) => node.view.show(record));
  }

  showTraining({ items }) {
    this.training = improving(items, this.model.job.objective.mode);
    this.show();
  }

  update() {
    const { job } = this.model, isOver = STOPPED.includes(job.state);
    const canExport = isOver && job.best !== null && !job.command;
    this.button.disabled = !canExport || this.isUnfinished();
    this.node.hidden = this.items.length === 0 && !canExport && this.failed.childElementCount === 0;
  }

  askNew() {
    const { budget, spend } = this.model.job, known = new Set(this.items.map((record) => record.id)), errorPlace = h("div");
    const boxes = Object.entries(FORMATS).map(([name, words]) => [name, h("input", { id: `format-${name}`, type: "checkbox", checked: true }), words]);
    const maxCost = h("input", { id: "max-cost", type: "number", min: 0.000001, max: 1000, step: "any", required: true, inputmode: "decimal", value: 0.5, "aria-describedby": "cost-help", oninput: () => label() });
    const maxDrop = h("input", { id: "max-drop", type: "number", min: 0, step: "any", inputmode: "decimal", "aria-describedby": "drop-help" });
    const left = budget.usd === null ? null : Math.max(0, budget.usd - spend.usd - spend.held_usd);
    const { button } = askForm("Export the best model", [
      h("fieldset", {}, h("legend", {}, "Formats"), boxes.map(([name, box, words]) => h("p", { class: "check" }, box, h("label", { for: box.id }, `${name} (${words})`)))),
      h("p", {}, h("label", { for: "max-cost" }, "Maximum cost, in dollars"), h("span", { class: "dollars" }, "$", maxCost)),
      h("p", { id: "cost-help", class: "soft small" }, "This amount is held until the export has ended. Only the machine time that the export uses is billed.", left === null ? null : ` The budget has ${usd(left)} left, and no more than that is spent.`),
      h("p", {}, h("label", { for: "max-drop" }, `Maximum drop in ${this.model.job.objective.metric}`), maxDrop),
      h("p", { id: "drop-help", class: "soft small" }, "A variant with a larger drop is not delivered. Leave this field empty to accept any drop."), errorPlace,
    ], "", () => this.create({
      formats: boxes.filter(([, box]) => box.checked).map(([name]) => name),
      max_cost_usd: Number(maxCost.value), max_drop: maxDrop.value === "" ? null : Number(maxDrop.value),
    }, known, errorPlace));
    const label = () => text(button, `Export for at most ${usd(Number(maxCost.value))}`);
    label();
  }

  /** Start an export, and return whether it was started. If the answer is lost, load the list: a new export in it means that it was started. */
  async create(body, known, errorPlace) {
    fill(errorPlace);
    let failure = null;
    try {
      await call(this.path, { method: "POST", body });
    } catch (error) {
      failure = error;
    }
    if (failure === null || failure.status === 0) await this.load();
    if (failure !== null && (failure.status !== 0 || this.items.every((record) => known.has(record.id)))) {
      fill(errorPlace, problem(failure));
      return false;
    }
    notifyTabs(this.model.job.id);
    showMessage("The export waits for a machine.");
    return true;
  }
}

/** One export. */
class ExportView {
  constructor(exports) {
    this.exports = exports;
    this.heading = h("h3");
    this.about = h("p", { class: "soft" });
    this.failure = h("div");
    this.errorPlace = h("div");
    this.variants = h("div");
    this.prices = h("div");
    this.query = null; // null: the shown prices are those in the list of exports
    this.node = h("article", {}, this.heading, this.about, this.failure, this.errorPlace, this.variants);
    this.node.view = this;
  }

  end() {
    this.serving?.end();
    this.train?.end();
  }

  show(record) {
    const { training } = this.exports, shown = JSON.stringify([record, training]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.record = record;
    text(this.heading, `${record.id} ${state(record.state)}`);
    const on = record.instance_type === null ? "" : ` on ${record.instance_type}`;
    const before = record.metric === null ? "" : ` Before export, ${record.metric_name} was ${figure(record.metric)}.`;
    text(this.about, `Trial ${short(record.trial)} at step ${record.step}${on}, ${usd(record.cost_usd)} of at most ${usd(record.max_cost_usd)}.${before}`);
    const missing = record.variants.filter((variant) => variant.file === null);
    fill(this.failure, record.code === null ? null : h("p", {}, h("code", {}, record.code), ` ${record.detail}`),
      missing.length === 0 ? null : h("div", { class: "warning" }, "Not delivered:", h("ul", {}, missing.map((variant) => h("li", {}, variant.format, " ", h("code", {}, variant.code), ` ${variant.detail}`)))));
    const delivered = record.variants.filter((variant) => variant.file !== null);
    if (delivered.length === 0) return;
    if (this.form === undefined) this.createTables();
    fill(this.files, table(`Files of ${record.id}`, ["Format", record.metric_name, "Drop", "Size", "Load time", "p50", "p99", "Per second", "Per second in batches", "File"],
      delivered.map((variant) => this.file(variant)), { numeric: [1, 2, 3, 4, 5, 6, 7, 8] }));
    this.showPrices(this.query === null ? record : this.answer);
  }

  createTables() {
    const place = (words) => h("div", { class: "chart", role: "img", "aria-label": words });
    const input = (name, words, value, props = {}) => [h("label", { for: `${name}-${this.record.id}` }, words), h("input", { id: `${name}-${this.record.id}`, value, size: 10, ...props })];
    const [rate, start, machine] = [input("rate", "Requests a second", 10, { type: "number", min: 0.000001, step: "any", required: true }),
      input("start", "Machine start time", "10s", { required: true }), input("machine", "Machine", this.record.instance_type ?? "")];
    this.form = h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); this.requestPrices(rate[1].value, start[1].value, machine[1].value.trim()); } },
      [rate, start, machine].map((pair) => h("p", {}, pair)), h("p", {}, h("button", { class: "quiet" }, "Calculate")));
    this.files = h("div");
    this.places = [place("Metric against dollars per million predictions. The table has every figure."), place("Metric against dollars to train.")];
    fill(this.variants, this.files, h("h4", {}, "Dollars per million predictions"), this.form, this.prices,
      h("div", { class: "two" }, h("div", {}, h("h4", {}, "What serving costs"), this.places[0]), h("div", {}, h("h4", {}, "What training costs"), this.places[1])));
  }

  file(variant) {
    const byBatch = new Map(variant.latency.map((measured) => [measured.batch, measured])), single = byBatch.get(1);
    const download = h("button", { type: "button", class: "quiet small", "aria-label": `Download ${variant.format}`, onclick: () => this.download(variant, download) }, "Download");
    const ms = (value) => (value === null ? figure(value) : `${figure(value)} ms`);
    return [variant.format, figure(variant.metric), figure(variant.drop), size(variant.bytes), ms(variant.load_ms), ms(single.p50_ms), ms(single.p99_ms),
      figure(Math.round(single.per_second)), figure(Math.round(Math.max(...variant.latency.map((measured) => measured.per_second)))), download];
  }

  async download(variant, button) {
    button.disabled = true;
    fill(this.errorPlace);
    try {
      const answer = await request(`${this.exports.path}/${this.record.id}/variants/${variant.format}`);
      save(await answer.blob(), `${variant.format}-${variant.file.split("/").pop()}`);
    } catch (error) {
      fill(this.errorPlace, problem(error));
    }
    button.disabled = false;
  }

  /** Request the prices for another rate, start time or machine. An answer that arrives after a newer request was sent is dropped. */
  async requestPrices(rate, start, machine) {
    const query = (this.query = new URLSearchParams({ requests_per_second: rate, start, ...(machine === "" ? {} : { instance_type: machine }) }));
    try {
      const answer = await call(`${this.exports.path}/${this.record.id}?${query}`);
      if (query === this.query) this.showPrices(answer);
    } catch (error) {
      if (query === this.query) fill(this.prices, problem(error));
    }
  }

  showPrices(record) {
    if (record === undefined) return;
    this.answer = record;
    const delivered = record.variants.filter((variant) => variant.serving.length > 0), { training } = this.exports;
    if (delivered.length === 0) {
      fill(this.prices, h("p", {}, "The price of the machine is not known. Enter another machine."));
      return;
    }
    const rows = delivered.flatMap((variant) => variant.serving.map((price, index) => [
      index === 0 && record.pareto.includes(variant.format) ? `★ ${variant.format}` : variant.format, price.instance_type, price.market.replaceAll("_", " "), usd(price.usd_per_hour),
      price.replicas, usd(price.real_time_usd_per_million), usd(price.batch_usd_per_million), usd(price.scale_to_zero_usd_per_million), `${figure(price.break_even_per_second)} a second`]));
    fill(this.prices, table(`Dollars per million predictions of ${record.id}`, ["Format", "Machine", "Market", "Price per hour", "Replicas", "Real time", "Batch", "Scale to zero", "Break-even"], rows, { numeric: [3, 4, 5, 6, 7, 8] }),
      h("p", { class: "soft small" }, "★ marks the Pareto front of metric and batch cost. Below the break-even rate, scaling to zero costs less than one replica that always runs. Other machines are assumed to be as fast as the measured one."));
    const known = delivered.filter((variant) => variant.metric !== null).map((variant) => [variant.serving[0].batch_usd_per_million, variant.metric, record.pareto.includes(variant.format)]);
    this.serving ??= frontChart(this.places[0], "dollars per million predictions", record.metric_name);
    this.serving.set(chartData(known));
    this.train ??= frontChart(this.places[1], "dollars to train it", record.metric_name);
    this.train.set(chartData(training.map((point) => [point.cost_usd, point.metric, true])));
  }
}

/** Draw points, with a line through those on the Pareto front. */
function frontChart(place, x, y) {
  const dots = (name) => ({ show: true, size: 7, fill: () => colour(name) });
  return chart(place, { x, y, formatX: dollars, formatY: figure, height: 220,
    series: [{ stroke: () => colour("running"), width: 2, spanGaps: true, paths: uPlot.paths.stepped({ align: 1 }), points: dots("running") },
      { stroke: () => colour("resting"), paths: () => null, points: dots("resting") }],
    scales: { x: { range: (_, low, high) => [0, (high || 1) * 1.1] }, y: { range: (_, low, high) => axisRange(low, high) } } });
}

/** Return the data of a chart from triples of dollars, metric and whether the point is on the Pareto front. */
function chartData(triples) {
  const sorted = [...triples].sort((a, b) => a[0] - b[0]);
  return [sorted.map(([x]) => x), sorted.map(([, y, isBest]) => (isBest ? y : null)), sorted.map(([, y, isBest]) => (isBest ? null : y))];
}
