// The files that jobs have in the storage: their size, what they cost, how long they are kept, and their deletion.

import { call, notifyTabs } from "./api.js";
import { askForm } from "./dialog.js";
import { fill, h, loading, problem, showMessage, table } from "./dom.js";
import { duration, figure, size, usd, when } from "./format.js";

const FINAL = ["succeeded", "cancelled", "failed"];
const KEPT = { all: "the files of all trials", best: "the files of the best trial", front: "the files of the trials on the Pareto front", none: "no files" };

/** The section of a job with its stored files. */
export class Stored {
  constructor(model) {
    this.model = model;
    this.button = h("button", { type: "button", class: "danger", onclick: () => this.askDelete() }, "Delete files…");
    this.shown = h("div", {}, loading());
    this.node = h("section", { "aria-label": "Stored files" }, h("h2", {}, "Stored files"), this.shown, h("div", { class: "acts" }, this.button));
    this.update();
  }

  /** Load the figures. If the request fails, the old figures remain. */
  async load() {
    try {
      const { items } = await call(`/storage?job=${this.model.job.id}`);
      this.show(items[0]);
      this.isLoaded = true;
    } catch (error) {
      if (!this.isLoaded) fill(this.shown, problem(error));
    }
  }

  update() {
    const { state } = this.model.job;
    this.button.disabled = !FINAL.includes(state);
    if (state === this.shownState) return;
    this.shownState = state;
    this.load();
  }

  show(files) {
    if (files === undefined) {
      fill(this.shown, h("p", { class: "soft" }, "Not measured yet. Files are measured every 15 minutes, and when the job has ended."));
      return;
    }
    const facts = [["Size", size(files.bytes)], ["Cost per month", usd(files.usd_per_month)], ["Stored so far", `${figure(files.storage_gb_months)} GB-months`],
      ["Cost so far", usd(files.storage_usd)], ["Kept after the job ends", retention(files)], ["Next deletion", files.next_deletion === null ? "none" : when(files.next_deletion)], ["Measured", when(files.measured_at)]];
    fill(this.shown, h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      files.needed_by === null ? null : h("p", {}, `Nothing can be deleted now: ${files.needed_by}.`),
      h("p", { class: "soft small" }, "The cost of storage does not count in bills and budgets."));
  }

  askDelete() {
    const errorPlace = h("div"), retain = h("select", { id: "retain" }, Object.entries(KEPT).filter(([name]) => name !== "all").reverse().map(([name, words]) => h("option", { value: name }, words)));
    askForm("Delete the files of this job?", [
      h("p", {}, "Its checkpoints and artifacts are deleted and cannot be restored. Metrics, the bill and logs are kept. If the job is resumed, its trials start from the beginning."),
      h("p", {}, h("label", { for: "retain" }, "Keep"), retain), errorPlace,
    ], "Delete the files", async () => {
      fill(errorPlace);
      try {
        const deleted = await call(`/jobs/${this.model.job.id}/artifacts?retain=${retain.value}`, { method: "DELETE" });
        notifyTabs(this.model.job.id);
        showMessage(`The files of ${deleted.trials} ${deleted.trials === 1 ? "trial is" : "trials are"} being deleted.`);
        this.load();
        return true;
      } catch (error) {
        fill(errorPlace, problem(error));
        return false;
      }
    }, "danger");
  }
}

function retention(files) {
  return files.keep_for_seconds === null ? KEPT[files.retain] : `${KEPT[files.retain]} for ${duration(files.keep_for_seconds)}`;
}

/** Show the stored files of the project, the largest job first. */
export async function storedFiles() {
  const stored = await call("/storage");
  const rows = stored.items.map((files) => [h("a", { href: `#/jobs/${files.job}` }, files.name), size(files.bytes), usd(files.usd_per_month), figure(files.storage_gb_months), usd(files.storage_usd), retention(files), files.next_deletion === null ? "none" : when(files.next_deletion)]);
  return h("section", { "aria-label": "Stored files" }, h("h2", {}, `Stored files: ${size(stored.bytes)}, ${usd(stored.usd_per_month)} a month`),
    h("p", { class: "soft" }, "Checkpoints, artifacts and exports as last measured. Their cost does not count in bills and budgets."),
    rows.length === 0 ? null : table("Stored files by job", ["Job", "Size", "Per month", "GB-months so far", "Cost so far", "Kept after the job ends", "Next deletion"], rows, { numeric: [1, 2, 3, 4] }));
}
