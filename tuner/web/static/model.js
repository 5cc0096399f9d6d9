// What is known of a job, kept up by its events. Telling it anything twice changes nothing.

export class Model {
  constructor(job) {
    this.job = job;
    this.trials = new Map();
    this.points = 0;
    this.lost = new Map(); // trial: the steps at which a machine was taken away
  }

  /** All curves up to an event, as `/curves` has them. */
  fill({ trials }) {
    for (const one of trials) {
      const trial = this.of(one.id), last = one.metric.length - 1;
      Object.assign(trial, { state: one.state, reason: one.reason, config: one.config, attempts: one.attempts, preemptions: one.preemptions,
        best: one.best_metric, cost_usd: one.total_usd, xs: one.steps, ys: one.metric, steps: one.steps[last] ?? 0, metric: one.metric[last] ?? null });
      this.points += one.steps.length;
      if (one.preemptions_at.length) this.lost.set(one.id, one.preemptions_at);
    }
  }

  /** The best as the service has it, told with the same events. */
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

  tell(kind, data) {
    if (kind === "report") this.report(data);
    else if (kind === "trial") this.trial(data);
    else if (kind === "spend") this.job.spend = data;
    else if (kind === "job") this.job = { ...this.job, ...data };
  }

  of(id) {
    let trial = this.trials.get(id);
    if (trial === undefined) {
      trial = { id, number: Number(id.replace(/\D+/g, "")), state: "pending", steps: 0, metric: null, cost_usd: 0, attempts: 0,
        preemptions: 0, config: null, xs: [], ys: [], best: null };
      this.trials.set(id, trial);
    }
    return trial;
  }

  trial(data) {
    const trial = this.of(data.id);
    // Reports that are still to come may be newer than what the row says.
    Object.assign(trial, data, { steps: Math.max(trial.steps, data.steps) });
  }

  report({ trial: id, step, metric, cost_usd }) {
    const trial = this.of(id), xs = trial.xs, ys = trial.ys;
    let at = xs.length;
    while (at > 0 && xs[at - 1] >= step) at -= 1;
    if (xs[at] === step) ys[at] = metric;
    else { xs.splice(at, 0, step); ys.splice(at, 0, metric); this.points += 1; }
    if (step >= trial.steps) { trial.steps = step; trial.metric = metric; }
    trial.cost_usd = Math.max(trial.cost_usd, cost_usd);
    if (this.better(metric, trial.best)) trial.best = metric;
  }

  /** The trials that reached most first; those without a metric last, by number. */
  leaders() {
    const sign = this.lowerIsBetter ? 1 : -1;
    return [...this.trials.values()].sort((a, b) =>
      a.best === null || b.best === null ? (a.best === null) - (b.best === null) || a.number - b.number
        : sign * (a.best - b.best) || a.number - b.number);
  }

  /** Every point at which a trial was compared and went on. */
  *promotions() {
    const rungs = this.job.rungs;
    for (const trial of this.trials.values()) {
      for (const rung of rungs) {
        const last = trial.xs[trial.xs.length - 1];
        if (last === undefined || last <= rung) break;
        const at = trial.xs.indexOf(rung);
        if (at >= 0 && trial.ys[at] !== null) yield [trial, rung, trial.ys[at]];
      }
    }
  }

  /** Every point after which a machine was taken away: the last that was reached before. */
  *preemptions() {
    for (const [id, steps] of this.lost) {
      const trial = this.of(id);
      for (const step of steps) {
        let at = trial.xs.length - 1;
        while (at > 0 && trial.xs[at] > step) at -= 1;
        if (at >= 0 && trial.ys[at] !== null) yield [trial, trial.xs[at], trial.ys[at]];
      }
    }
  }
}
