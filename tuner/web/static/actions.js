// Pause, resume, cancel and top up. While one is under way none can be asked for, and each says what is wanted in the end, not
// by how much it changes, so that asking twice does it once.

import { call, changed } from "./api.js";
import { fill, h, problem, say } from "./dom.js";
import { usd } from "./format.js";

const FINAL = ["succeeded", "cancelled", "failed"];

export class Actions {
  /** `done(job)` is called with the job as it is after an action. */
  constructor(model, done) {
    this.model = model;
    this.done = done;
    this.busy = false;
    const button = (words, act, name = "") => h("button", { type: "button", class: name, onclick: act }, words);
    this.pause = button("Pause", () => this.act("pause", "The job pauses: its trials are saved at their next step."));
    this.resume = button("Resume", () => this.act("resume", "The job goes on."));
    this.topUp = button("Top up…", () => this.askBudget());
    this.cancel = button("Cancel…", () => this.askCancel(), "danger");
    this.failed = h("div");
    this.node = h("div", {}, h("div", { class: "actions", role: "group", "aria-label": "Actions" }, this.pause, this.resume, this.topUp, this.cancel), this.failed);
    this.update();
  }

  update() {
    const { state } = this.model.job, dead = state === "cancelled" || state === "failed";
    this.pause.disabled = this.busy || state === "paused" || FINAL.includes(state);
    this.resume.disabled = this.busy || !["paused", "succeeded"].includes(state);
    this.topUp.disabled = this.busy || dead;
    this.cancel.disabled = this.busy || FINAL.includes(state);
  }

  /** Runs `work` unless something is under way. Answers whether it was done. */
  async once(work, words, place = this.failed) {
    if (this.busy) return false;
    this.busy = true;
    this.update();
    fill(place);
    try {
      this.done(await work());
      changed(this.model.job.id);
      say(words);
      return true;
    } catch (error) {
      fill(place, problem(error));
      return false;
    } finally {
      this.busy = false;
      this.update();
    }
  }

  act(name, words) {
    return this.once(() => call(`/jobs/${this.model.job.id}/${name}`, { method: "POST" }), words);
  }

  askCancel() {
    const dialog = this.dialog("Cancel this job?", [
      h("p", {}, "All work stops at once. What was found stays, and no more is spent. A cancelled job cannot go on."),
    ], "Cancel the job", async () => { await this.act("cancel", "The job is being cancelled."); dialog.close(); }, "danger");
  }

  askBudget() {
    const { id, budget } = this.model.job, seen = budget.usd;
    const input = h("input", { id: "total", type: "number", min: 0, step: "any", required: true, inputmode: "decimal", value: seen ?? "" });
    const go = h("input", { id: "go-on", type: "checkbox", checked: true });
    const goes = ["paused", "succeeded"].includes(this.model.job.state);
    const wrong = h("div");
    const dialog = this.dialog("Top up", [
      h("p", {}, seen === null ? "This job has no budget in dollars yet." : `Its budget is ${usd(seen)}. Say what it shall be in all.`),
      h("p", {}, h("label", { for: "total" }, "New budget, in dollars"), input),
      goes ? h("p", { class: "check" }, go, h("label", { for: "go-on" }, "and go on with the job")) : null,
      wrong,
    ], "Set the budget", async () => {
      const total = Number(input.value);
      const work = async () => {
        const now = await call(`/jobs/${id}`);
        if (now.budget.usd !== seen && now.budget.usd !== total) {
          this.done(now);
          throw { title: "The budget has changed meanwhile", detail: `It is ${usd(now.budget.usd)} now. Close this and open it again to see it.` };
        }
        const patched = await call(`/jobs/${id}`, { method: "PATCH", body: { budget: { usd: total } } });
        return goes && go.checked ? call(`/jobs/${id}/resume`, { method: "POST" }) : patched;
      };
      if (await this.once(work, `The budget is ${usd(total)}.`, wrong)) dialog.close();
    });
  }

  dialog(title, content, words, act, name = "") {
    const button = h("button", { class: name }, words);
    const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() },
      h("form", { onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        await act();
        button.disabled = false;
      } }, h("h2", {}, title), content,
      h("div", { class: "actions" }, button, h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Not now"))));
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
  }
}
