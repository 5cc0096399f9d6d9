// The page of spend by group.

import { ask, call } from "./api.js";
import { fill, h, loading, problem, save, table } from "./dom.js";
import { duration, figure, usd, when } from "./format.js";
import { storedFiles } from "./stored.js";

const GROUPS = { "tag:project": "project", owner: "owner", trainable: "trainable", market: "market", day: "day", job: "job", "tag:": "a tag…" };
const DAY_MS = 86_400_000;

/** Show the spend in `main`. Return a function that removes it. */
export async function spendPage(main) {
  document.title = "Spend · tuner";
  const shown = h("div", { "aria-live": "polite" }, loading());
  const stored = h("div");
  const by = h("select", { id: "by" }, Object.entries(GROUPS).map(([value, words]) => h("option", { value }, words)));
  const tag = h("input", { id: "tag", size: 12, placeholder: "team" }), tagged = h("p", { hidden: true }, h("label", { for: "tag" }, "Tag"), tag);
  const also = h("select", { id: "also" }, h("option", { value: "" }, "nothing else"), Object.entries(GROUPS).filter(([value]) => value !== "tag:").map(([value, words]) => h("option", { value }, words)));
  const since = h("input", { id: "since", type: "date" }), until = h("input", { id: "until", type: "date" });
  let turn = 0;

  const groups = () => [by.value === "tag:" ? `tag:${tag.value.trim()}` : by.value, also.value].filter((one, index, all) => one && all.indexOf(one) === index);
  const query = () => {
    const words = new URLSearchParams({ timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" });
    for (const group of groups()) words.append("group_by", group);
    if (since.value) words.set("since", since.value);
    if (until.value) words.set("until", until.value);
    return `/spend?${words}`;
  };
  const show = async () => {
    const mine = (turn += 1);
    tagged.hidden = by.value !== "tag:";
    if (by.value === "tag:" && tag.value.trim() === "") { fill(shown, h("p", {}, "Enter the key of the tag.")); return; }
    let found;
    try {
      const answer = await call(query());
      found = [spendTable(answer), machines(answer)];
    } catch (error) {
      found = problem(error);
    }
    if (mine === turn) fill(shown, found);
  };
  const saveCsv = async () => {
    try {
      save(await (await ask(query(), { headers: { Accept: "text/csv" } })).blob(), "spend.csv");
    } catch (error) {
      fill(shown, problem(error));
    }
  };
  const month = (of) => {
    const now = new Date(), iso = (date) => new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 10);
    if (of === null) since.value = until.value = "";
    else if (of === 30) [since.value, until.value] = [iso(new Date(now - 29 * DAY_MS)), ""];
    else [since.value, until.value] = [iso(new Date(now.getFullYear(), now.getMonth() + of, 1)), of === 0 ? "" : iso(new Date(now.getFullYear(), now.getMonth() + of + 1, 1))];
    show();
  };
  const preset = (words, of) => h("button", { type: "button", class: "quiet small", onclick: () => month(of) }, words);
  for (const input of [by, tag, also, since, until]) input.addEventListener("change", show);
  fill(main, h("h1", { tabindex: "-1" }, "Spend"),
    h("div", { class: "fields" },
      h("p", {}, h("label", { for: "by" }, "By"), by), tagged, h("p", {}, h("label", { for: "also" }, "and by"), also), h("p", {}, h("label", { for: "since" }, "Since"), since),
      h("p", {}, h("label", { for: "until" }, "Until before"), until),
      h("p", {}, h("button", { type: "button", class: "quiet", onclick: saveCsv }, "Download as CSV"))),
    h("div", { class: "actions", role: "group", "aria-label": "Time" }, preset("All time", null), preset("Last 30 days", 30), preset("This month", 0), preset("Last month", -1)),
    shown, stored);
  await show();
  storedFiles().then((section) => fill(stored, section), (error) => fill(stored, problem(error)));
  return () => { turn += 1; };
}

function spendTable(found) {
  const names = found.group_by.map((group) => group.replace(/^tag:/, ""));
  if (found.items.length === 0) return h("section", { "aria-label": "Spend" }, h("p", {}, "Nothing was spent in this time."));
  const most = Math.max(...found.items.map((one) => one.usd), 1e-9), count = names.length;
  const row = (keys, one, bar) => [...keys, bar, usd(one.usd), figure(one.gpu_hours), one.jobs, one.trials, usd(one.usd_per_completed_trial), usd(one.lost_usd), one.preemptions];
  const rows = [...found.items].sort((a, b) => b.usd - a.usd).map((one) => row(found.group_by.map((group) => one.keys[group] ?? "none"), one,
    h("div", { class: "stack", "aria-hidden": "true" }, h("span", { class: "kind train", style: { width: `${(100 * one.usd) / most}%` } }))));
  const { total } = found;
  return [
    h("dl", { class: "facts" }, [["Spent", usd(total.usd)], ["Jobs", total.jobs], ["Trials", total.trials], ["Lost to preemptions and crashes", usd(total.lost_usd)],
      ["Storage, in no budget", `${figure(total.storage_gb_months)} GB-months, ${usd(total.storage_usd)}`]]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("div", { class: "ground" }, table(`Spend by ${names.join(" and ")}`, [...names, "Share", "Spent", "GPU-hours", "Jobs", "Trials", "A completed trial", "Lost", "Preemptions"],
      [...rows, row(["Total", ...names.slice(1).map(() => "")], total, "")], { numeric: [1, 2, 3, 4, 5, 6, 7].map((index) => index + count) })),
  ];
}

/** Show the cost of worker machines while no trial ran on them, or nothing if no worker machine was ever seen. */
function machines(found) {
  const { cluster, cluster_idle_usd: idle } = found;
  if (cluster === null) return null;
  const notes = [];
  if (idle !== null) notes.push(`This is a part of ${usd(cluster.usd)}, the cost of all worker machines in the whole hours of this period.`);
  if (cluster.unpriced_node_hours > 0) notes.push(`${figure(cluster.unpriced_node_hours)} machine hours have no known price and are not included.`);
  if (cluster.unseen_hours > 0) notes.push(`Not observed for ${duration(cluster.unseen_hours * 3600)}; the cost of machines in that time is unknown and not included.`);
  else if (idle === null && cluster.unpriced_node_hours === 0) notes.push("The machines were not observed in this period.");
  if (found.since === null || found.since < cluster.known_since) notes.push(`Counted since ${when(cluster.known_since)}.`);
  const rows = cluster.kinds.map((one) => [one.instance_type || "unnamed", one.market.replaceAll("_", " "), usd(one.idle_usd), figure(one.idle_hours), usd(one.usd), figure(one.node_hours)]);
  return h("section", { "aria-label": "Machines that no job used" },
    h("h2", {}, `Machines that no job used: ${idle === null ? "unknown" : usd(idle)}`),
    h("p", {}, "What worker machines cost while no trial ran on them: until they are given back, or the next trial comes. It is in no job’s bill and not in the figures above."),
    h("ul", { class: "soft" }, notes.map((note) => h("li", {}, note))),
    rows.length === 0 ? null : table("Idle machines by kind", ["Machine", "Market", "Cost while idle", "Idle hours", "Cost", "Hours"], rows, { numeric: [2, 3, 4, 5] }));
}
