// The dialog of one trial: its configuration, bill, attempts with their output, and learning curve. It can be stopped and promoted.

import { call, notifyTabs } from "./api.js";
import { config } from "./answer.js";
import { askForm, openDialog } from "./dialog.js";
import { fill, h, loading, problem, showMessage, table, text } from "./dom.js";
import { duration, figure, short, state, usd, when } from "./format.js";
import { Artifacts } from "./artifacts.js";
import { Logs } from "./logs.js";
import { KINDS, kindsWithLegend } from "./money.js";

const EVERY_MS = 5000;

/** Show the dialog until it is closed. While the trial runs, the content is updated. */
export async function show(model, id) {
  const job = model.job.id, head = h("p"), body = h("div", {}, loading()), logs = new Logs(job, id), artifacts = new Artifacts(job, id);
  const actions = new TrialActions(model, id);
  const dialog = openDialog(`Trial ${short(id)}`, [head, actions.node, body, artifacts.node, h("h3", {}, "Log"), logs.node], { close: "Close", wide: true });
  let timer = null, oldText = "";
  dialog.addEventListener("close", () => { clearTimeout(timer); logs.end(); });
  const load = async () => {
    let isLive = true;
    try {
      const trial = await call(`/jobs/${job}/trials/${id}`);
      isLive = ["running", "pending", "paused"].includes(trial.state);
      logs.hasEnded = !isLive;
      artifacts.update(trial.steps, isLive);
      const newText = JSON.stringify(trial);
      if (newText !== oldText) showTrial(trial);
      oldText = newText;
    } catch (error) {
      oldText = ""; // the next answer replaces the error, even if it equals the last one
      fill(body, problem(error));
    }
    if (dialog.isConnected && isLive) timer = setTimeout(load, EVERY_MS);
  };
  const showTrial = (trial) => {
    actions.update(trial);
    text(head, `${state(trial.state, trial.reason)}: best ${model.job.objective.metric} ${figure(trial.metric)}, newest ${figure(trial.latest_metric)} at step ${trial.steps}${trial.violation ? ", which violates the constraints" : ""}, ${usd(trial.paid_usd)} paid.`);
    const open = [...body.querySelectorAll("details")].map((node) => node.open);
    fill(body, details(trial));
    body.querySelectorAll("details").forEach((node, index) => { node.open = open[index] ?? node.open; });
  };
  await load();
}

const PROMOTION_LOST = "Each request promotes the trial by one rung, and this one may have arrived: check the trial before you promote it again.";

/** The buttons that promote and stop a trial. Each is disabled if the trial's state does not allow the action. */
class TrialActions {
  constructor(model, id) {
    this.model = model;
    this.path = `/jobs/${model.job.id}/trials/${id}`;
    this.busy = false;
    this.state = null;
    this.promote = h("button", { type: "button", class: "quiet", onclick: () => this.send("promote", `Trial ${short(id)} runs to its next rung.`, this.failed, PROMOTION_LOST) }, "Promote");
    this.stop = h("button", { type: "button", class: "danger", onclick: () => this.askStop(id) }, "Stop…");
    this.failed = h("div");
    this.node = h("div", { class: "acts" }, h("div", { class: "actions", role: "group", "aria-label": "Actions of the trial" }, this.promote, this.stop), this.failed);
    this.update({ state: null });
  }

  update({ state }) {
    this.state = state;
    const hasEnded = ["succeeded", "cancelled", "failed"].includes(this.model.job.state);
    this.promote.disabled = this.busy || hasEnded || this.model.job.rungs.length === 0 || !["running", "paused"].includes(state);
    this.stop.disabled = this.busy || hasEnded || !["pending", "running", "paused"].includes(state);
  }

  /** Send a request about the trial. Return whether it succeeded. If the answer is lost, the error is shown, with the detail `lost` if it
   * is given, and the request is not repeated. */
  async send(name, words, place, lost) {
    if (this.busy) return false;
    this.busy = true;
    this.update(this);
    fill(place);
    try {
      await call(`${this.path}/${name}`, { method: "POST" });
      notifyTabs(this.model.job.id);
      showMessage(words);
      return true;
    } catch (error) {
      fill(place, problem(lost && error.status === 0 ? { title: error.title, detail: lost } : error));
      return false;
    } finally {
      this.busy = false;
      this.update(this);
    }
  }

  askStop(id) {
    const errorPlace = h("div");
    askForm(`Stop trial ${short(id)}?`, [h("p", {}, "The trial stops for good. What it has reported is kept, and its worker continues with another trial."), errorPlace],
      "Stop the trial", () => this.send("stop", `Trial ${short(id)} is being stopped.`, errorPlace), "danger");
  }
}

function details(trial) {
  const attempts = trial.attempt_list.map((attempt) => [
    attempt.attempt, attempt.end === null ? "▶ running" : attempt.end.replaceAll("_", " "), `${attempt.from_step} → ${attempt.to_step}`,
    usd(Object.values(attempt.bill).reduce((sum, part) => sum + part, 0)), attempt.market.replaceAll("_", " "), usd(attempt.usd_per_hour),
    attempt.reason || attempt.detail ? `${attempt.reason} ${attempt.detail}`.trim() : "", when(attempt.began_at), when(attempt.ended_at), attempt.node ?? "–",
  ]);
  const total = KINDS.reduce((sum, kind) => sum + (trial.bill[kind] ?? 0), 0);
  return [
    h("h3", {}, "Configuration"), config(trial.config),
    h("h3", {}, "Bill"), total > 0 ? kindsWithLegend(trial.bill, total) : h("p", {}, "Nothing has been spent on this trial yet."),
    h("h3", {}, "Attempts"),
    table("Attempts of the trial", ["Attempt", "Outcome", "Steps", "Paid", "Market", "Price per hour", "Reason", "Began", "Ended", "Node"], attempts, { numeric: [0, 3, 5] }),
    h("details", {}, h("summary", {}, `Learning curve: ${trial.curve.length} reports`),
      table("Its learning curve", ["Step", "Metric", "Cost to train", "Time to train"],
        trial.curve.map((point) => [point.step, figure(point.metric), usd(point.cost_usd), duration(point.duration_seconds)]), { numeric: [0, 1, 2, 3] })),
  ];
}
