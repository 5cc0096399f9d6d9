// Who spent what.

import { ask, call } from "./api.js";
import { fill, h, problem, table } from "./dom.js";
import { figure, usd } from "./format.js";

const GROUPS = { "tag:project": "project", owner: "owner", trainable: "trainable", market: "market", day: "day", job: "job" };

/** Shows the spend in `main` until what is returned is called. */
export async function spendPage(main) {
  document.title = "Spend · tuner";
  const shown = h("div", { "aria-live": "polite" });
  const by = h("select", { id: "by" }, Object.entries(GROUPS).map(([value, words]) => h("option", { value }, words)));
  const since = h("input", { id: "since", type: "date" }), until = h("input", { id: "until", type: "date" });
  let turn = 0;

  const query = () => {
    const words = new URLSearchParams({ group_by: by.value, timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" });
    if (since.value) words.set("since", since.value);
    if (until.value) words.set("until", until.value);
    return `/spend?${words}`;
  };
  const show = async () => {
    const mine = (turn += 1);
    let found;
    try {
      found = told(await call(query()), GROUPS[by.value]);
    } catch (error) {
      found = problem(error);
    }
    if (mine === turn) fill(shown, found);
  };
  const save = async () => {
    try {
      const file = await (await ask(query(), { headers: { Accept: "text/csv" } })).blob();
      const link = h("a", { href: URL.createObjectURL(file), download: "spend.csv" });
      link.click();
      URL.revokeObjectURL(link.href);
    } catch (error) {
      fill(shown, problem(error));
    }
  };
  for (const input of [by, since, until]) input.addEventListener("change", show);
  fill(main, h("h1", { tabindex: "-1" }, "Spend"),
    h("div", { class: "fields" },
      h("p", {}, h("label", { for: "by" }, "By"), by), h("p", {}, h("label", { for: "since" }, "Since"), since),
      h("p", {}, h("label", { for: "until" }, "Until before"), until),
      h("p", {}, h("button", { type: "button", class: "quiet", onclick: save }, "Download as CSV"))),
    shown);
  await show();
  return () => { turn += 1; };
}

function told(found, by) {
  const most = Math.max(...found.items.map((one) => one.usd), 1e-9);
  const row = (name, one, bar) => [name, bar, usd(one.usd), figure(one.gpu_hours), one.jobs, one.trials, usd(one.usd_per_completed_trial), usd(one.lost_usd), one.preemptions];
  const rows = [...found.items].sort((a, b) => b.usd - a.usd).map((one) => row(Object.values(one.keys)[0] ?? "none", one,
    h("div", { class: "stack", "aria-hidden": "true" }, h("span", { class: "kind train", style: { width: `${(100 * one.usd) / most}%` } }))));
  return table(`Spend by ${by}`, [by, "Share", "Spent", "GPU-hours", "Jobs", "Trials", "A completed trial", "Lost", "Preemptions"],
    [...rows, row("Total", found.total, "")], { numeric: [2, 3, 4, 5, 6, 7, 8] });
}
