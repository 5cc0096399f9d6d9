// The page of spend by group.

import { request, call } from "./api.js";
import { fill, h, loading, problem, save, table } from "./dom.js";
import { duration, figure, usd, when } from "./format.js";
import { storedFiles } from "./stored.js";

const GROUPS = { "tag:project": "project", owner: "owner", trainable: "trainable", market: "market", day: "day", job: "job", "tag:": "a tag…" };
const DAY_MS = 86_400_000;

/** Show the spend in `main`. Return a function that removes it. */
export async function spendPage(main) {
  document.title = "Spend · tuner";
  const tablePlace = h("div", { "aria-live": "polite" }, loading());
  const storedPlace = h("div");
  const firstGroup = h("select", { id: "by" }, Object.entries(GROUPS).map(([value, label]) => h("option", { value }, label)));
  const tag = h("input", { id: "tag", size: 12, placeholder: "team" }), tagged = h("p", { hidden: true }, h("label", { for: "tag" }, "Tag"), tag);
  const secondGroup = h("select", { id: "also" }, h("option", { value: "" }, "nothing else"), Object.entries(GROUPS).filter(([value]) => value !== "tag:").map(([value, label]) => h("option", { value }, label)));
  const since = h("input", { id: "since", type: "date" }), until = h("input", { id: "until", type: "date" });
  let turn = 0;

  const groups = () => [firstGroup.value === "tag:" ? `tag:${tag.value.trim()}` : firstGroup.value, secondGroup.value].filter((group, index, all) => group && all.indexOf(group) === index);
  const query = () => {
    const query = new URLSearchParams({ timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" });
    for (const group of groups()) query.append("group_by", group);
    if (since.value) query.set("since", since.value);
    if (until.value) query.set("until", until.value);
    return `/spend?${query}`;
  };
  const show = async () => {
    const ownTurn = (turn += 1);
    tagged.hidden = firstGroup.value !== "tag:";
    if (firstGroup.value === "tag:" && tag.value.trim() === "") { fill(tablePlace, h("p", {}, "Enter the key of the tag.")); return; }
    let content;
    try {
      const answer = await call(query());
      content = [spendTable(answer), idleMachines(answer)];
    } catch (error) {
      content = problem(error);
    }
    if (ownTurn === turn) fill(tablePlace, content);
  };
  const saveCsv = async () => {
    try {
      save(await (await request(query(), { headers: { Accept: "text/csv" } })).blob(), "spend.csv");
    } catch (error) {
      fill(tablePlace, problem(error));
    }
  };
  const choosePeriod = (period) => {
    const now = new Date(), iso = (date) => new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 10);
    if (period === null) since.value = until.value = "";
    else if (period === 30) [since.value, until.value] = [iso(new Date(now - 29 * DAY_MS)), ""];
    else [since.value, until.value] = [iso(new Date(now.getFullYear(), now.getMonth() + period, 1)), period === 0 ? "" : iso(new Date(now.getFullYear(), now.getMonth() + period + 1, 1))];
    show();
  };
  const periodButton = (label, period) => h("button", { type: "button", class: "quiet small", onclick: () => choosePeriod(period) }, label);
  for (const input of [firstGroup, tag, secondGroup, since, until]) input.addEventListener("change", show);
  fill(main, h("h1", { tabindex: "-1" }, "Spend"),
    h("div", { class: "fields" },
      h("p", {}, h("label", { for: "by" }, "By"), firstGroup), tagged, h("p", {}, h("label", { for: "also" }, "and by"), secondGroup), h("p", {}, h("label", { for: "since" }, "Since"), since),
      h("p", {}, h("label", { for: "until" }, "Until (not included)"), until),
      h("p", {}, h("button", { type: "button", class: "quiet", onclick: saveCsv }, "Download as CSV"))),
    h("div", { class: "actions", role: "group", "aria-label": "Time" }, periodButton("All time", null), periodButton("Last 30 days", 30), periodButton("This month", 0), periodButton("Last month", -1)),
    tablePlace, storedPlace);
  await show();
  storedFiles().then((section) => fill(storedPlace, section), (error) => fill(storedPlace, problem(error)));
  return () => { turn += 1; };
}

function spendTable(answer) {
  const names = answer.group_by.map((group) => group.replace(/^tag:/, ""));
  if (answer.items.length === 0) return h("section", { "aria-label": "Spend" }, h("p", {}, "Nothing was spent in this time."));
  const most = Math.max(...answer.items.map((figures) => figures.usd), 1e-9), count = names.length;
  const row = (keys, figures, bar) => [...keys, bar, usd(figures.usd), figure(figures.gpu_hours), figures.jobs, figures.trials, usd(figures.usd_per_completed_trial), usd(figures.lost_usd), figures.preemptions];
  const rows = [...answer.items].sort((a, b) => b.usd - a.usd).map((figures) => row(answer.group_by.map((group) => figures.keys[group] ?? "none"), figures,
    h("div", { class: "stack", "aria-hidden": "true" }, h("span", { class: "kind train", style: { width: `${(100 * figures.usd) / most}%` } }))));
  const { total } = answer;
  return [
    h("dl", { class: "facts" }, [["Spent", usd(total.usd)], ["Jobs", total.jobs], ["Trials", total.trials], ["Lost to preemptions and crashes", usd(total.lost_usd)],
      ["Storage, not counted in budgets", `${figure(total.storage_gb_months)} GB-months, ${usd(total.storage_usd)}`]]
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("div", { class: "ground" }, table(`Spend by ${names.join(" and ")}`, [...names, "Share", "Spent", "GPU-hours", "Jobs", "Trials", "Per completed trial", "Lost", "Preemptions"],
      [...rows, row(["Total", ...names.slice(1).map(() => "")], total, "")], { numeric: [1, 2, 3, 4, 5, 6, 7].map((index) => index + count) })),
  ];
}

/** Show the cost of worker machines while no trial ran on them, or nothing if no worker machine was ever seen. */
function idleMachines(answer) {
  const { cluster, cluster_idle_usd: idle } = answer;
  if (cluster === null) return null;
  const notes = [];
  if (idle !== null) notes.push(`This is a part of ${usd(cluster.usd)}, the cost of all worker machines in the whole hours of this period.`);
  if (cluster.unpriced_node_hours > 0) notes.push(`${figure(cluster.unpriced_node_hours)} machine hours have no known price and are not included.`);
  if (cluster.unseen_hours > 0) notes.push(`Not observed for ${duration(cluster.unseen_hours * 3600)}; the cost of machines in that time is unknown and not included.`);
  else if (idle === null && cluster.unpriced_node_hours === 0) notes.push("The machines were not observed in this period.");
  if (answer.since === null || answer.since < cluster.known_since) notes.push(`Counted since ${when(cluster.known_since)}.`);
  const rows = cluster.kinds.map((figures) => [figures.instance_type || "unnamed", figures.market.replaceAll("_", " "), usd(figures.idle_usd), figure(figures.idle_hours), usd(figures.usd), figure(figures.node_hours)]);
  return h("section", { "aria-label": "Machines that no job used" },
    h("h2", {}, `Machines that no job used: ${idle === null ? "unknown" : usd(idle)}`),
    h("p", {}, "The cost of worker machines while no trial ran on them: until the next trial started, or the machine was released. It is not part of any job’s bill or of the figures above."),
    h("ul", { class: "soft" }, notes.map((note) => h("li", {}, note))),
    rows.length === 0 ? null : table("Idle machines by kind", ["Machine", "Market", "Cost while idle", "Idle hours", "Cost", "Hours"], rows, { numeric: [2, 3, 4, 5] }));
}
