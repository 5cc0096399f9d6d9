// The actions of a job: pause, resume, cancel, top up, priority and tags. While one is running, the others are disabled.

import { changed } from "./api.js";
import { change, Meanwhile, order } from "./change.js";
import { ask } from "./dialog.js";
import { fill, h, problem, say } from "./dom.js";
import { usd } from "./format.js";

const FINAL = ["succeeded", "cancelled", "failed"];

export class Actions {
  /** `done(job)` is called after an action with the changed job. */
  constructor(model, done) {
    this.model = model;
    this.done = done;
    this.busy = false;
    const button = (words, act, name = "quiet") => h("button", { type: "button", class: name, onclick: act }, words);
    this.pause = button("Pause", () => this.act("pause", "The job pauses: its trials are saved at their next step."));
    this.resume = button("Resume", () => this.act("resume", "The job continues."));
    this.topUp = button("Top up…", () => this.askBudget(), "");
    this.edit = button("Priority and tags…", () => this.askRest());
    this.cancel = button("Cancel…", () => this.askCancel(), "danger");
    this.failed = h("div");
    this.node = h("div", { class: "acts" },
      h("div", { class: "actions", role: "group", "aria-label": "Actions" }, this.topUp, this.pause, this.resume, this.edit, this.cancel), this.failed);
    this.update();
  }

  update() {
    const { state } = this.model.job, dead = state === "cancelled" || state === "failed";
    this.pause.disabled = this.busy || state === "paused" || FINAL.includes(state);
    this.resume.disabled = this.busy || !["paused", "succeeded"].includes(state);
    this.topUp.disabled = this.busy || dead;
    this.edit.disabled = this.busy;
    this.cancel.disabled = this.busy || FINAL.includes(state);
  }

  /** Run `work` unless another action is running. Return whether it succeeded. */
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
      if (error instanceof Meanwhile) this.done(error.job);
      else fill(place, problem(error));
      if (error instanceof Meanwhile) throw error;
      return false;
    } finally {
      this.busy = false;
      this.update();
    }
  }

  act(name, words) {
    return this.once(() => order(this.model.job.id, name), words);
  }

  askCancel() {
    const wrong = h("div");
    ask("Cancel this job?", [
      h("p", {}, "All work stops at once, and no more money is spent. The results are kept. A cancelled job cannot be resumed."), wrong,
    ], "Cancel the job", () => this.once(() => order(this.model.job.id, "cancel"), "The job is being cancelled.", wrong), "danger");
  }

  /** Open a dialog that changes the job. If the job was changed since it was loaded, show the difference and ask again. */
  askChange(title, content, words, { body, is, difference, saying, then = (job) => job }) {
    let seen = this.model.job;
    const wrong = h("div");
    const { button } = ask(title, [content, wrong], words, async () => {
      try {
        return await this.once(async () => then(await change(seen, body(), is)), saying(), wrong);
      } catch (error) {
        if (!(error instanceof Meanwhile)) throw error;
        fill(wrong, problem({ title: "The job was changed meanwhile", detail: `${difference(seen, error.job)} Your change was not made. To make it anyway, press the button again.` }));
        button.textContent = `${words} all the same`;
        seen = error.job;
        return false;
      }
    });
  }

  askBudget() {
    const { id, budget, spend, state } = this.model.job, least = spend.usd + spend.held_usd;
    const input = h("input", { id: "total", type: "number", min: 0, step: "any", required: true, inputmode: "decimal", value: budget.usd ?? "", "aria-describedby": "total-help" });
    const go = h("input", { id: "go-on", type: "checkbox", checked: true });
    const goes = ["paused", "succeeded"].includes(state);
    const add = (part) => h("button", { type: "button", class: "quiet small", onclick: () => { input.value = String(Number((budget.usd * (1 + part)).toFixed(6))); input.focus(); } }, `+ ${100 * part} %`);
    this.askChange("Top up", [
      h("p", {}, budget.usd === null ? "This job has no budget in dollars yet." : `Its budget is ${usd(budget.usd)}. Enter the new total.`),
      h("p", {}, h("label", { for: "total" }, "New budget, in dollars"), h("span", { class: "dollars" }, "$", input, budget.usd ? [0.25, 0.5, 1].map(add) : null)),
      h("p", { id: "total-help", class: "soft small" }, `At least ${usd(least)}: what is spent and held.`),
      goes ? h("p", { class: "check" }, go, h("label", { for: "go-on" }, "and resume the job")) : null,
    ], "Set the budget", {
      body: () => ({ budget: { usd: Number(input.value) } }),
      is: (job) => job.budget.usd === Number(input.value),
      difference: (before, now) => before.budget.usd === now.budget.usd ? "Its priority or tags have changed." : `Its budget was ${usd(before.budget.usd)}. It is ${usd(now.budget.usd)} now.`,
      saying: () => `The budget is ${usd(Number(input.value))}.`,
      then: (job) => (goes && go.checked && ["paused", "succeeded"].includes(job.state) ? order(id, "resume") : job),
    });
  }

  askRest() {
    const { priority, tags } = this.model.job;
    const written = (of) => Object.entries(of).map(([name, value]) => `${name}: ${value}`).join("\n");
    const rank = h("input", { id: "priority", type: "number", min: -1000, max: 1000, step: 1, required: true, value: priority });
    const lines = h("textarea", { id: "tags", rows: 4, spellcheck: "false", "aria-describedby": "tags-help" });
    lines.value = written(tags);
    const read = () => Object.fromEntries(lines.value.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
      const [name, ...rest] = line.split(":");
      return [name.trim(), rest.join(":").trim()];
    }));
    const sorted = (of) => JSON.stringify(Object.entries(of).sort());
    this.askChange("Priority and tags", [
      h("p", {}, h("label", { for: "priority" }, "Priority: higher ones are launched first"), rank),
      h("p", {}, h("label", { for: "tags" }, "Tags"), lines),
      h("p", { id: "tags-help", class: "soft small" }, "One per line, such as project: vision. Spend is grouped by tags."),
    ], "Set them", {
      body: () => ({ priority: Number(rank.value), tags: read() }),
      is: (job) => job.priority === Number(rank.value) && sorted(job.tags) === sorted(read()),
      difference: (before, now) => `Now its budget is ${usd(now.budget.usd)}, its priority ${now.priority} and its tags are ${written(now.tags).replaceAll("\n", ", ") || "none"}.`,
      saying: () => "Priority and tags are set.",
    });
  }
}
