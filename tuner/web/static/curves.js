// The chart of the learning curves of all trials, with rungs, promotions and preemptions.
//
// uPlot draws the axes. The curves are drawn into the same canvas after each change. The curve under the pointer is drawn on a second
// canvas on top, so that moving the pointer over thousands of curves redraws only one.

import { call } from "./api.js";
import { chart, colour, valueRange, axisRange } from "./chart.js";
import { fill, h, problem, text } from "./dom.js";
import { figure, short, state } from "./format.js";

const NEAR_PX = 40, AGAIN_MS = 1000;
const FEW = 200; // If there are more curves than this, they are drawn as hairlines, which takes a fraction of the time.

export class Curves {
  /** `open(trial)` is called when the user chooses a curve. */
  constructor(model, open) {
    this.model = model;
    this.open = open;
    this.ranked = [];
    this.heights = [0, 1];
    this.picked = null;
    this.place = h("div", { class: "chart", tabindex: "0", role: "group", "aria-roledescription": "chart",
      "aria-describedby": "curves-keys" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" }, "Hover, or use the arrow keys, to read a trial.");
    const sign = (name, words) => h("li", {}, h("span", { class: `sign ${name}`, "aria-hidden": "true" }), words);
    this.whole = h("input", { type: "checkbox", onchange: () => this.update() });
    this.off = h("p", { hidden: true }, h("label", {}, this.whole, " Show outliers, too"));
    this.picker = h("select", { id: "charted", onchange: () => this.choose(this.picker.value) });
    this.choice = h("p", { class: "charted", hidden: true }, h("label", { for: "charted" }, "Metric"), this.picker);
    this.failed = h("div");
    this.node = h("div", {}, this.choice, this.failed, h("p", { id: "curves-keys", class: "visually-hidden" }, "The up and down keys select a trial, starting with the best. Enter shows the selected trial."), this.place, this.readout, this.off, h("ul", { class: "legend" },
      sign("best", "best"), sign("running", "running"), sign("resting", "paused or stopped"), sign("rung", "rung"),
      sign("promoted", "promoted"), sign("preempted", "preempted")));
    this.place.addEventListener("keydown", (event) => this.onKey(event));
  }

  /** Create the chart. Call this when its element is laid out and has a width. */
  begin() {
    const { fidelity } = this.model.job;
    this.chart = chart(this.place, {
      x: fidelity.unit, y: this.model.charted, formatX: figure, formatY: figure, height: 340, whole: true,
      series: [{ stroke: "transparent", points: { show: false } }],
      scales: {
        x: { range: () => [0, this.right()] },
        y: { range: () => this.heights },
      },
      hooks: {
        init: [(plot) => this.addOverlay(plot)],
        setSize: [(plot) => this.fitOverlay(plot)],
        draw: [(plot) => this.draw(plot)],
        setCursor: [(plot) => this.hover(plot)],
      },
    });
    this.update();
  }

  end() {
    this.chart?.end();
  }

  /** Load the curves of another metric and chart them. If the answer lacks reports that the page already has, load the curves again. */
  async choose(name) {
    const { model } = this, since = model.seq;
    model.chart(name);
    this.chart.end();
    this.begin();
    this.pick(null);
    fill(this.failed);
    if (model.isObjective) return;
    text(this.readout, "Loading…");
    try {
      for (;;) {
        const answer = await call(`/jobs/${model.job.id}/curves?${new URLSearchParams({ metric: name })}`);
        if (model.charted !== name) return;
        model.fillCharted(answer);
        if (answer.seq >= since || !this.place.isConnected) break;
        await new Promise((done) => { setTimeout(done, AGAIN_MS); });
      }
      this.pick(this.picked); // A trial that was picked while the curves were loading remains picked.
    } catch (error) {
      if (model.charted !== name) return;
      text(this.readout, "");
      fill(this.failed, problem(error));
    }
    this.update();
  }

  /** List the reported metrics in the menu. */
  listMetrics() {
    const { job, metrics, charted } = this.model, names = [...metrics].sort();
    this.choice.hidden = names.length < 2;
    if (this.picker.childElementCount !== names.length)
      fill(this.picker, names.map((name) => h("option", { value: name }, name === job.objective.metric ? `${name} (objective)` : name)));
    this.picker.value = charted;
  }

  right() {
    let most = 1;
    for (const trial of this.model.trials.values()) most = Math.max(most, trial.xs[trial.xs.length - 1] ?? 0);
    return Math.max(most, this.model.job.fidelity.max ?? 0);
  }

  update() {
    const { model } = this;
    this.listMetrics();
    const values = [...model.trials.values()].map((trial) => model.curveOf(trial).ys);
    const { low, high, off } = valueRange(values, model.points, model.isObjective ? model.job.objective.mode : null);
    this.off.hidden = off === null;
    const near = off !== null && !this.whole.checked;
    this.heights = near ? axisRange(off.low, off.high) : axisRange(low, high);
    this.ranked = this.model.leaders();
    this.chart.set([[0, this.right()], this.heights]);
    this.place.setAttribute("aria-label", `Learning curves of ${this.ranked.length} trials, ${model.points} reports${model.isObjective ? "" : `: ${model.charted}`}`);
  }

  draw(plot) {
    const { ctx } = plot, { model } = this;
    const { left, top, width, height } = plot.bbox, px = devicePixelRatio;
    const X = (value) => plot.valToPos(value, "x", true), Y = (value) => plot.valToPos(value, "y", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.font = `${11 * px}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = colour("soft");
    ctx.strokeStyle = colour("soft");
    ctx.lineWidth = px;
    for (const rung of model.job.rungs) {
      ctx.setLineDash([4 * px, 4 * px]);
      ctx.beginPath();
      ctx.moveTo(X(rung), top);
      ctx.lineTo(X(rung), top + height);
      ctx.stroke();
      ctx.fillText(String(rung), X(rung) + 3 * px, top + 11 * px);
    }
    ctx.setLineDash([]);
    const first = this.ranked[0]?.best === null ? null : this.ranked[0];
    const best = model.trials.get(model.leader()?.trial) ?? first; // If several trials are equally good, this is the one that the service names.
    const layer = (trials, name, alpha, thick) => {
      ctx.globalAlpha = alpha;
      ctx.strokeStyle = ctx.fillStyle = colour(name);
      ctx.lineWidth = thick * px;
      for (const trial of trials) {
        ctx.beginPath();
        this.addPath(ctx, trial, X, Y, px);
        ctx.stroke();
      }
    };
    const others = this.ranked.filter((trial) => trial !== best);
    const crowd = Math.max(0.25, Math.min(0.8, 60 / (others.length + 1)));
    layer(others.filter((trial) => trial.state !== "running"), "resting", crowd, others.length > FEW ? 1 : 1.2);
    layer(others.filter((trial) => trial.state === "running"), "running", 0.95, others.length > FEW ? 1 : 1.5);
    if (best) layer([best], "best", 1, 3);
    ctx.globalAlpha = 1;
    this.drawMarks(ctx, X, Y, px);
    if (best) this.drawName(ctx, best, X, Y, px, left + width, top);
    ctx.restore();
    this.drawPicked(plot);
  }

  addPath(ctx, trial, X, Y, px) {
    const { xs, ys } = this.model.curveOf(trial);
    let open = false;
    for (let at = 0; at < xs.length; at += 1) {
      if (ys[at] === null) { open = false; continue; }
      const x = X(xs[at]), y = Y(ys[at]);
      if (open) ctx.lineTo(x, y);
      else { ctx.moveTo(x, y); if (xs.length === 1) ctx.lineTo(x + 3 * px, y); }
      open = true;
    }
  }

  /** Write the name of the best trial at the end of its curve. */
  drawName(ctx, trial, X, Y, px, right, top) {
    const { xs, ys } = this.model.curveOf(trial), last = xs.length - 1, words = short(trial.id);
    if (last < 0 || ys[last] === null) return;
    ctx.font = `bold ${12 * px}px system-ui, sans-serif`;
    const x = Math.min(X(xs[last]) + 5 * px, right - ctx.measureText(words).width - 2 * px), y = Math.max(top + 12 * px, Y(ys[last]) - 6 * px);
    ctx.strokeStyle = colour("ground");
    ctx.lineWidth = 4 * px;
    ctx.strokeText(words, x, y);
    ctx.fillStyle = colour("best");
    ctx.fillText(words, x, y);
  }

  drawMarks(ctx, X, Y, px) {
    const size = (this.ranked.length > 200 ? 2.5 : 4) * px;
    ctx.globalAlpha = this.ranked.length > FEW ? 0.3 : 1;
    ctx.fillStyle = colour("promoted");
    ctx.beginPath();
    for (const [, step, value] of this.model.promotions()) {
      const x = X(step), y = Y(value);
      ctx.moveTo(x, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.lineTo(x - size, y + size);
    }
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colour("preempted");
    ctx.lineWidth = 2 * px;
    ctx.beginPath();
    for (const [, step, value] of this.model.preemptions()) {
      const x = X(step), y = Y(value);
      ctx.moveTo(x - size, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.moveTo(x + size, y - size);
      ctx.lineTo(x - size, y + size);
    }
    ctx.stroke();
  }

  addOverlay(plot) {
    this.overlay = h("canvas", { class: "overlay", "aria-hidden": "true" });
    plot.over.append(this.overlay);
    plot.over.addEventListener("click", () => { if (this.picked) this.open(this.picked); });
    this.fitOverlay(plot);
  }

  fitOverlay(plot) {
    if (!this.overlay) return;
    this.overlay.width = plot.over.clientWidth * devicePixelRatio;
    this.overlay.height = plot.over.clientHeight * devicePixelRatio;
  }

  hover(plot) {
    const { left, top } = plot.cursor;
    if (left === undefined || left < 0) return;
    const step = plot.posToVal(left, "x");
    let closest = null, nearest = NEAR_PX;
    for (const trial of this.ranked) {
      const value = at(this.model.curveOf(trial), step);
      if (value === null) continue;
      const away = Math.abs(plot.valToPos(value, "y") - top);
      if (away < nearest) { nearest = away; closest = trial; }
    }
    if (closest !== this.picked) this.pick(closest);
  }

  pick(trial) {
    this.picked = trial;
    text(this.readout, trial === null ? "Hover, or use the arrow keys, to read a trial." : this.describe(trial));
    this.drawPicked(this.chart.plot);
  }

  describe(trial) {
    const { model } = this, { objective } = model.job, { ys } = model.curveOf(trial);
    const now = model.isObjective ? figure(trial.metric) : `${model.charted} ${figure(ys[ys.length - 1])}`;
    return `Trial ${short(trial.id)}: ${now} at step ${trial.steps}, best ${model.isObjective ? "" : `${objective.metric} `}${figure(trial.best)}, ${state(trial.state)}. Click or Enter shows it.`;
  }

  /** Draw the picked curve on the upper canvas. */
  drawPicked(plot) {
    if (!this.overlay) return;
    const ctx = this.overlay.getContext("2d"), px = devicePixelRatio, trial = this.picked;
    ctx.clearRect(0, 0, this.overlay.width, this.overlay.height);
    if (trial === null) return;
    ctx.strokeStyle = colour("text");
    ctx.lineWidth = 2.5 * px;
    ctx.beginPath();
    this.addPath(ctx, trial, (value) => plot.valToPos(value, "x") * px, (value) => plot.valToPos(value, "y") * px, px);
    ctx.stroke();
  }

  onKey(event) {
    const reported = this.ranked.filter((trial) => trial.xs.length > 0);
    const place = reported.indexOf(this.picked);
    if (event.key === "ArrowDown") this.pick(reported[Math.min(reported.length - 1, place + 1)] ?? null);
    else if (event.key === "ArrowUp") this.pick(reported[Math.max(0, place - 1)] ?? null);
    else if (event.key === "Enter" && this.picked) this.open(this.picked);
    else if (event.key === "Escape") this.pick(null);
    else return;
    event.preventDefault();
  }
}

/** Return the metric of a trial at the step nearest to `step`, or null if the trial was not trained that far. */
function at({ xs, ys }, step) {
  if (xs.length === 0 || step < xs[0] - 0.5 || step > xs[xs.length - 1] + 0.5) return null;
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < step) low = middle + 1;
    else high = middle;
  }
  if (low > 0 && step - xs[low - 1] < xs[low] - step) low -= 1;
  return ys[low];
}
