// The actions of a job: pause, resume, cancel, top up, priority and tags. While an action is running, all other actions are disabled.

import { notifyTabs } from "./api.js";
import { changeJob, JobChanged, requestControl } from "./change.js";
import { askForm } from "./dialog.js";
import { fill, h, problem, showMessage, warningList } from "./dom.js";
import { usd } from "./format.js";

const FINAL = ["succeeded", "cancelled", "failed"];

export class Actions {
  /** `onChange(job)` is called after an action with the changed job. */
  constructor(model, onChange) {
    this.model = model;
    this.onChange = onChange;
    this.busy = false;
    const button = (words, act, name = "quiet") => h("button", { type: "button", class: name, onclick: act }, words);
    this.pause = button("Pause", () => this.act("pause", "The job pauses: its trials are saved at their next step."));
    this.resume = button("Resume", () => this.act("resume", "The job continues."));
    this.topUp = button("Top up…", () => this.askBudget(), "");
    this.edit = button("Priority and tags…", () => this.askPriorityAndTags());
    this.cancel = button("Cancel…", () => this.askCancel(), "danger");
    this.failed = h("div");
    this.warnings = h("div", { role: "status" });
    this.node = h("div", { class: "acts" },
      h("div", { class: "actions", role: "group", "aria-label": "Actions" }, this.topUp, this.pause, this.resume, this.edit, this.cancel), this.failed, this.warnings);
    this.update();
  }

  update() {
    const { state } = this.model.job, isOver = state === "cancelled" || state === "failed";
    this.pause.disabled = this.busy || state === "paused" || FINAL.includes(state);
    this.resume.disabled = this.busy || !["paused", "succeeded"].includes(state);
    this.topUp.disabled = this.busy || isOver;
    this.edit.disabled = this.busy;
    this.cancel.disabled = this.busy || FINAL.includes(state);
  }

  /** Run `work` unless another action is running. Return whether it succeeded. */
  async runAlone(work, words, place = this.failed) {
    if (this.busy) return false;
    this.busy = true;
    this.update();
    fill(place);
    fill(this.warnings);
    try {
      const job = await work();
      this.onChange(job);
      fill(this.warnings, warningList(job.warnings));
      notifyTabs(this.model.job.id);
      showMessage(words);
      return true;
    } catch (error) {
      if (error instanceof JobChanged) this.onChange(error.job);
      else fill(place, problem(error));
      if (error instanceof JobChanged) throw error;
      return false;
    } finally {
      this.busy = false;
      this.update();
    }
  }

  act(name, words) {
    return this.runAlone(() => requestControl(this.model.job.id, name), words);
  }

  askCancel() {
    const errorPlace = h("div");
    askForm("Cancel this job?", [
      h("p", {}, "All work stops at once, and no more money is spent. The results are kept. A cancelled job cannot be resumed."), errorPlace,
    ], "Cancel the job", () => this.runAlone(() => requestControl(this.model.job.id, "cancel"), "The job is being cancelled.", errorPlace), "danger");
  }

  /** Open a dialog that changes the job. If the job was changed since it was loaded, show the difference and ask again. */
  askChange(title, content, words, { body, isMade, describeDifference, message, then = (job) => job }) {
    let loaded = this.model.job;
    const errorPlace = h("div");
    const { button } = askForm(title, [content, errorPlace], words, async () => {
      try {
        return await this.runAlone(async () => then(await changeJob(loaded, body(), isMade)), message(), errorPlace);
      } catch (error) {
        if (!(error instanceof JobChanged)) throw error;
        fill(errorPlace, problem({ title: "The job was changed meanwhile", detail: `${describeDifference(loaded, error.job)} Your change was not saved. To save it anyway, press the button again.` }));
        button.textContent = `${words} anyway`;
        loaded = error.job;
        return false;
      }
    });
  }

  askBudget() {
    const { id, budget, spend, state } = this.model.job, minimum = spend.usd + spend.held_usd;
    const totalInput = h("input", { id: "total", type: "number", min: 0, step: "any", required: true, inputmode: "decimal", value: budget.usd ?? "", "aria-describedby": "total-help" });
    const resumeBox = h("input", { id: "go-on", type: "checkbox", checked: true });
    const canResume = ["paused", "succeeded"].includes(state);
    const addButton = (part) => h("button", { type: "button", class: "quiet small", onclick: () => { totalInput.value = String(Number((budget.usd * (1 + part)).toFixed(6))); totalInput.focus(); } }, `+ ${100 * part} %`);
    this.askChange("Top up", [
      h("p", {}, budget.usd === null ? "This job has no budget in dollars yet." : `Its budget is ${usd(budget.usd)}. Enter the new total.`),
      h("p", {}, h("label", { for: "total" }, "New budget, in dollars"), h("span", { class: "dollars" }, "$", totalInput, budget.usd ? [0.25, 0.5, 1].map(addButton) : null)),
      h("p", { id: "total-help", class: "soft small" }, `Enter at least ${usd(minimum)}, the amount that is already spent or held.`),
      canResume ? h("p", { class: "check" }, resumeBox, h("label", { for: "go-on" }, "and resume the job")) : null,
    ], "Set the budget", {
      body: () => ({ budget: { usd: Number(totalInput.value) } }),
      isMade: (job) => job.budget.usd === Number(totalInput.value),
      describeDifference: (before, now) => before.budget.usd === now.budget.usd ? "Its priority or tags have changed." : `Its budget was ${usd(before.budget.usd)}. It is ${usd(now.budget.usd)} now.`,
      message: () => `The budget is ${usd(Number(totalInput.value))}.`,
      then: (job) => (canResume && resumeBox.checked && ["paused", "succeeded"].includes(job.state) ? requestControl(id, "resume") : job),
    });
  }

  askPriorityAndTags() {
    const { priority, tags } = this.model.job;
    const tagLines = (of) => Object.entries(of).map(([name, value]) => `${name}: ${value}`).join("\n");
    const priorityInput = h("input", { id: "priority", type: "number", min: -1000, max: 1000, step: 1, required: true, value: priority });
    const tagsInput = h("textarea", { id: "tags", rows: 4, spellcheck: "false", "aria-describedby": "tags-help" });
    tagsInput.value = tagLines(tags);
    const readTags = () => Object.fromEntries(tagsInput.value.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
      const [name, ...rest] = line.split(":");
      return [name.trim(), rest.join(":").trim()];
    }));
    const sortedTags = (of) => JSON.stringify(Object.entries(of).sort());
    this.askChange("Priority and tags", [
      h("p", {}, h("label", { for: "priority" }, "Priority: jobs with a higher number are launched first"), priorityInput),
      h("p", {}, h("label", { for: "tags" }, "Tags"), tagsInput),
      h("p", { id: "tags-help", class: "soft small" }, "One tag per line, such as project: vision. The Spend page groups by tags."),
    ], "Save", {
      body: () => ({ priority: Number(priorityInput.value), tags: readTags() }),
      isMade: (job) => job.priority === Number(priorityInput.value) && sortedTags(job.tags) === sortedTags(readTags()),
      describeDifference: (before, now) => `Now its budget is ${usd(now.budget.usd)}, its priority ${now.priority} and its tags are ${tagLines(now.tags).replaceAll("\n", ", ") || "none"}.`,
      message: () => "Priority and tags are set.",
    });
  }
}
