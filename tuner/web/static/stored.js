// The files that jobs have in the storage: their size, what they cost, how long they are kept, and their deletion.

import { call, changed } from "./api.js";
import { ask } from "./dialog.js";
import { fill, h, loading, problem, say, table } from "./dom.js";
import { duration, figure, size, usd, when } from "./format.js";

const FINAL = ["succeeded", "cancelled", "failed"];
const KEPT = { all: "the files of all trials", best: "the files of the best trial", front: "the files of the trials on the front", none: "no files" };

/** The section of a job with its stored files. */
export class Stored {
  constructor(model) {
    this.model = model;
    this.button = h("button", { type: "button", class: "danger", onclick: () => this.askDelete() }, "Delete files…");
    this.shown = h("div", {}, loading());
    this.node = h("section", { "aria-label": "Stored files" }, h("h2", {}, "Stored files"), this.shown, h("div", { class: "acts" }, this.button));
    this.update();
  }

  /** Load the figures. The old ones stay if that fails. */
  async look() {
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
    if (state === this.seen) return;
    this.seen = state;
    this.look();
  }

  show(one) {
    if (one === undefined) {
      fill(this.shown, h("p", { class: "soft" }, "Not measured yet. Files are measured every 15 minutes, and when the job has ended."));
      return;
    }
    const facts = [["Size", size(one.bytes)], ["A month costs", usd(one.usd_per_month)], ["Stored so far", `${figure(one.storage_gb_months)} GB-months`],
      ["Cost so far", usd(one.storage_usd)], ["After its end it keeps", policy(one)], ["Next deletion", one.next_deletion === null ? "none" : when(one.next_deletion)], ["Measured", when(one.measured_at)]];
    fill(this.shown, h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      one.needed_by === null ? null : h("p", {}, `Nothing can be deleted now: ${one.needed_by}.`),
      h("p", { class: "soft small" }, "The cost of storage is in no bill and no budget."));
  }

  askDelete() {
    const wrong = h("div"), retain = h("select", { id: "retain" }, Object.entries(KEPT).filter(([name]) => name !== "all").reverse().map(([name, words]) => h("option", { value: name }, words)));
    ask("Delete the files of this job?", [
      h("p", {}, "Its checkpoints and artifacts are deleted and cannot be restored. Metrics, the bill and logs stay. If the job is resumed, its trials begin again."),
      h("p", {}, h("label", { for: "retain" }, "Keep"), retain), wrong,
    ], "Delete the files", async () => {
      fill(wrong);
      try {
        const done = await call(`/jobs/${this.model.job.id}/artifacts?retain=${retain.value}`, { method: "DELETE" });
        changed(this.model.job.id);
        say(`The files of ${done.trials} ${done.trials === 1 ? "trial is" : "trials are"} being deleted.`);
        this.look();
        return true;
      } catch (error) {
        fill(wrong, problem(error));
        return false;
      }
    }, "danger");
  }
}

function policy(one) {
  return one.keep_for_seconds === null ? KEPT[one.retain] : `${KEPT[one.retain]} for ${duration(one.keep_for_seconds)}`;
}

/** Show the stored files of the project, the largest job first. */
export async function storedFiles() {
  const stored = await call("/storage");
  const rows = stored.items.map((one) => [h("a", { href: `#/jobs/${one.job}` }, one.name), size(one.bytes), usd(one.usd_per_month), figure(one.storage_gb_months), usd(one.storage_usd), policy(one), one.next_deletion === null ? "none" : when(one.next_deletion)]);
  return h("section", { "aria-label": "Stored files" }, h("h2", {}, `Stored files: ${size(stored.bytes)}, ${usd(stored.usd_per_month)} a month`),
    h("p", { class: "soft" }, "Checkpoints, artifacts and exports as last measured. Their cost is in no bill and no budget."),
    rows.length === 0 ? null : table("Stored files by job", ["Job", "Size", "A month", "GB-months so far", "Cost so far", "After its end it keeps", "Next deletion"], rows, { numeric: [1, 2, 3, 4] }));
}
