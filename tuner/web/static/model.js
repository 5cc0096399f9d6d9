// The state of a job in the page, kept up to date by the job's events. Applying an event twice changes nothing.

const NO_CURVE = { xs: [], ys: [] };

export class Model {
  constructor(job) {
    this.job = job;
    this.trials = new Map();
    this.points = 0;
    this.lostAt = new Map(); // by trial: the steps at which it was preempted
    this.metrics = new Set([job.objective.metric]); // the metrics that can be charted
    this.charted = job.objective.metric;
    this.otherCurves = new Map(); // by trial: its curve of the charted metric, if that is not the objective's
    this.seq = 0; // event number of the newest report
  }

  /** Store all curves up to an event, from an answer of `/curves`. */
  fill({ trials, metrics = [], seq = 0 }) {
    for (const name of metrics) this.metrics.add(name);
    this.seq = seq;
    for (const curves of trials) {
      const trial = this.trialOf(curves.id), last = curves.metric.length - 1;
      Object.assign(trial, { state: curves.state, reason: curves.reason, config: curves.config, attempts: curves.attempts, preemptions: curves.preemptions,
        best: curves.best_metric, cost_usd: curves.total_usd, xs: curves.steps, ys: curves.metric, steps: curves.steps[last] ?? 0, metric: curves.metric[last] ?? null });
      this.points += curves.steps.length;
      if (curves.preemptions_at.length) this.lostAt.set(curves.id, curves.preemptions_at);
    }
  }

  /** Select another metric to chart. New reports are added to its curves at once; `fillCharted` adds the earlier ones. */
  chart(name) {
    this.charted = name;
    this.otherCurves = new Map();
  }

  /** Store the curves of the charted metric, from an answer of `/curves?metric=`. Reports that arrived meanwhile are kept. */
  fillCharted({ metric, trials }) {
    if (metric !== this.charted || this.isObjective) return;
    for (const { id, steps, metric: values } of trials) {
      const later = this.otherCurves.get(id) ?? NO_CURVE, curve = { xs: steps, ys: values };
      later.xs.forEach((step, index) => putPoint(curve, step, later.ys[index]));
      this.otherCurves.set(id, curve);
    }
  }

  get isObjective() {
    return this.charted === this.job.objective.metric;
  }

  /** Return a trial's curve of the charted metric: `xs` are its steps and `ys` the values, null if a report lacks the metric. */
  curveOf(trial) {
    return this.isObjective ? trial : this.otherCurves.get(trial.id) ?? NO_CURVE;
  }

  /** Return the best trial and its step. The service chooses them, and sends them with the events of the job. */
  leader() {
    return this.job.best;
  }

  get lowerIsBetter() {
    return this.job.objective.mode === "min";
  }

  better(a, b) {
    if (b === null || b === undefined) return a !== null && a !== undefined;
    if (a === null || a === undefined) return false;
    return this.lowerIsBetter ? a < b : a > b;
  }

  apply(kind, data) {
    if (kind === "report") this.report(data);
    else if (kind === "trial") this.trial(data);
    else if (kind === "spend") this.job.spend = data;
    else if (kind === "job") this.job = { ...this.job, ...data };
  }

  trialOf(id) {
    let trial = this.trials.get(id);
    if (trial === undefined) {
      trial = { id, number: Number(id.replace(/\D+/g, "")), state: "pending", steps: 0, metric: null, cost_usd: 0, attempts: 0,
        preemptions: 0, config: null, xs: [], ys: [], best: null };
      this.trials.set(id, trial);
    }
    return trial;
  }

  trial(data) {
    const trial = this.trialOf(data.id);
    // The row may be older than reports that were already received.
    const best = this.better(data.metric, trial.best) ? data.metric : trial.best;
    Object.assign(trial, data, { steps: Math.max(trial.steps, data.steps), metric: data.latest_metric, best });
  }

  report({ trial: id, step, metric, metrics = {}, violation = 0, seq = 0 }) {
    const trial = this.trialOf(id);
    this.seq = Math.max(this.seq, seq);
    if (putPoint(trial, step, metric)) this.points += 1;
    if (step >= trial.steps) { trial.steps = step; trial.metric = metric; }
    if (violation === 0 && this.better(metric, trial.best)) trial.best = metric; // 0: the step satisfies the job's constraints
    for (const [name, value] of Object.entries(metrics)) if (typeof value === "number") this.metrics.add(name);
    if (this.isObjective) return;
    const value = metrics[this.charted];
    if (!this.otherCurves.has(id)) this.otherCurves.set(id, { xs: [], ys: [] });
    putPoint(this.otherCurves.get(id), step, typeof value === "number" ? value : null);
  }

  /** Return the trials by their best metric, best first. Those without a metric come last, by number. */
  leaders() {
    const sign = this.lowerIsBetter ? 1 : -1;
    return [...this.trials.values()].sort((a, b) =>
      a.best === null || b.best === null ? (a.best === null) - (b.best === null) || a.number - b.number
        : sign * (a.best - b.best) || a.number - b.number);
  }

  /** Yield each point of the charted metric at which a trial was compared at a rung and continued. */
  *promotions() {
    const rungs = this.job.rungs;
    for (const trial of this.trials.values()) {
      const curve = this.curveOf(trial);
      for (const rung of rungs) {
        const last = trial.xs[trial.xs.length - 1];
        if (last === undefined || last <= rung) break;
        const at = trial.xs.indexOf(rung);
        if (at < 0 || trial.ys[at] === null) continue;
        const place = curve.xs.indexOf(rung);
        if (place >= 0 && curve.ys[place] !== null) yield [trial, rung, curve.ys[place]];
      }
    }
  }

  /** Yield each point of the charted metric that was the last one before a preemption. */
  *preemptions() {
    for (const [id, steps] of this.lostAt) {
      const trial = this.trialOf(id), { xs, ys } = this.curveOf(trial);
      for (const step of steps) {
        let at = xs.length - 1;
        while (at > 0 && xs[at] > step) at -= 1;
        if (at >= 0 && ys[at] !== null) yield [trial, xs[at], ys[at]];
      }
    }
  }
}

/** Add a point to a curve, or replace the point of the same step. Return whether it is new. */
function putPoint({ xs, ys }, step, value) {
  let at = xs.length;
  while (at > 0 && xs[at - 1] >= step) at -= 1;
  if (xs[at] === step) { ys[at] = value; return false; }
  xs.splice(at, 0, step);
  ys.splice(at, 0, value);
  return true;
}
