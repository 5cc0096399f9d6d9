// The list of all jobs.

import { call, onChanged } from "./api.js";
import { fill, h, keyed, loading, problem, text } from "./dom.js";
import { figure, state, usd, when } from "./format.js";

const EVERY_MS = 2000, PAGE = 50;
const STATES = ["queued", "running", "paused", "succeeded", "cancelled", "failed"];

/** Show the jobs in `main`. Return a function that removes them. */
export async function jobsPage(main) {
  document.title = "Jobs · tuner";
  let count = PAGE, ended = false, turn = 0;
  const body = h("tbody"), empty = h("p", { hidden: true }, "No job yet. ", h("a", { href: "#/new" }, "Submit the first one"), ".");
  const none = h("p", { hidden: true }, "No job matches these filters."), failed = h("div"), waiting = loading();
  const states = h("select", { id: "state", onchange: () => look() }, h("option", { value: "" }, "any"), STATES.map((one) => h("option", { value: one }, one)));
  const tag = h("input", { id: "tag", size: 18, placeholder: "project:vision", onchange: () => look() });
  const filters = h("div", { class: "fields", hidden: true }, h("p", {}, h("label", { for: "state" }, "State"), states), h("p", {}, h("label", { for: "tag" }, "Tag"), tag));
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => { count = Math.min(500, count + PAGE); look(); } }, "Show older");
  const head = (words) => h("th", { scope: "col" }, words);
  const wide = h("div", { class: "wide ground", role: "region", hidden: true, tabindex: "0", "aria-label": "Jobs, newest first" },
    h("table", { class: "jobs" }, h("caption", { class: "visually-hidden" }, "Jobs, newest first"),
      h("thead", {}, h("tr", {}, head("Job"), head("State"), head("Spent of its budget"), head("Best"), head("Trials"), head("Submitted"))), body));
  fill(main, h("h1", { tabindex: "-1" }, "Jobs"), filters, failed, waiting, empty, none, wide, more);

  async function look() {
    try {
      const words = new URLSearchParams({ limit: count });
      if (states.value) words.set("state", states.value);
      if (tag.value.trim()) words.set("tag", tag.value.trim());
      const mine = (turn += 1), found = await call(`/jobs?${words}`);
      if (ended || mine !== turn) return;
      fill(failed);
      waiting.remove();
      const any = found.items.length > 0, asked = states.value !== "" || tag.value.trim() !== "";
      empty.hidden = any || asked;
      none.hidden = any || !asked;
      filters.hidden = !any && !asked;
      wide.hidden = !any;
      more.hidden = found.next_cursor === null || count >= 500;
      keyed(body, found.items, (job) => job.id, row, update);
    } catch (error) {
      if (ended) return;
      waiting.remove();
      fill(failed, problem(error));
    }
  }

  await look();
  const looking = setInterval(() => { if (!document.hidden) look(); }, EVERY_MS);
  const unheard = onChanged(look);
  return () => { ended = true; clearInterval(looking); unheard(); };
}

function row(job) {
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#/jobs/${job.id}`, title: job.name }, job.name), h("div", { class: "soft small" }, job.id)),
    h("td"), h("td", {}, h("progress", { max: 1, "aria-label": `Spent of the budget of ${job.name}` }), h("div", { class: "small" })),
    h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "small" }, when(job.created_at)));
}

function update(node, job) {
  const [, stands, money, best, trials] = node.children;
  text(stands, state(job.state, job.stop_reason));
  stands.className = `state ${job.state}`;
  money.children[0].value = job.progress.budget_used;
  text(money.children[1], job.budget.usd === null ? usd(job.spend.usd) : `${usd(job.spend.usd)} of ${usd(job.budget.usd)}`);
  text(best, job.best === null ? "–" : `${figure(job.best.metric)}`);
  text(trials, String(Object.values(job.progress.trials).reduce((sum, count) => sum + count, 0)));
}
