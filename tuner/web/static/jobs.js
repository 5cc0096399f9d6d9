// The list of all jobs.

import { call, onJobChanged } from "./api.js";
import { fill, h, keyed, loading, problem, text } from "./dom.js";
import { figure, state, usd, when } from "./format.js";

const EVERY_MS = 2000, PAGE = 50;
const STATES = ["queued", "running", "paused", "succeeded", "cancelled", "failed"];

/** Show the jobs in `main`. Return a function that removes them. */
export async function jobsPage(main) {
  document.title = "Jobs · tuner";
  let count = PAGE, ended = false, turn = 0, timer;
  const body = h("tbody"), empty = h("p", { hidden: true }, "No job yet. ", h("a", { href: "#/new" }, "Submit the first one"), ".");
  const noMatch = h("p", { hidden: true }, "No job matches these filters."), failed = h("div"), waiting = loading();
  const states = h("select", { id: "state", onchange: () => load() }, h("option", { value: "" }, "any"), STATES.map((name) => h("option", { value: name }, name)));
  const tag = h("input", { id: "tag", size: 18, placeholder: "project:vision", onchange: () => load() });
  const filters = h("div", { class: "fields", hidden: true }, h("p", {}, h("label", { for: "state" }, "State"), states), h("p", {}, h("label", { for: "tag" }, "Tag"), tag));
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => { count = Math.min(500, count + PAGE); load(); } }, "Show older");
  const head = (label) => h("th", { scope: "col" }, label);
  const region = h("div", { class: "wide ground", role: "region", hidden: true, tabindex: "0", "aria-label": "Jobs, newest first" },
    h("table", { class: "jobs" }, h("caption", { class: "visually-hidden" }, "Jobs, newest first"),
      h("thead", {}, h("tr", {}, head("Job"), head("State"), head("Spent of its budget"), head("Best"), head("Trials"), head("Submitted"))), body));
  fill(main, h("h1", { tabindex: "-1" }, "Jobs"), filters, failed, waiting, empty, noMatch, region, more);

  /** Load the list, and again two seconds after the answer. An answer that arrives after a newer request was sent is dropped. */
  async function load() {
    const ownTurn = (turn += 1);
    clearTimeout(timer);
    try {
      const query = new URLSearchParams({ limit: count });
      if (states.value) query.set("state", states.value);
      if (tag.value.trim()) query.set("tag", tag.value.trim());
      const answer = await call(`/jobs?${query}`);
      if (ended || ownTurn !== turn) return;
      fill(failed);
      waiting.remove();
      const hasJobs = answer.items.length > 0, isFiltered = states.value !== "" || tag.value.trim() !== "";
      empty.hidden = hasJobs || isFiltered;
      noMatch.hidden = hasJobs || !isFiltered;
      filters.hidden = !hasJobs && !isFiltered;
      region.hidden = !hasJobs;
      more.hidden = answer.next_cursor === null || count >= 500;
      keyed(body, answer.items, (job) => job.id, row, update);
    } catch (error) {
      if (ended || ownTurn !== turn) return;
      waiting.remove();
      fill(failed, problem(error));
    }
    schedule();
  }

  function schedule() {
    timer = setTimeout(() => (document.hidden ? schedule() : load()), EVERY_MS);
  }

  await load();
  const stopListening = onJobChanged(load);
  return () => { ended = true; clearTimeout(timer); stopListening(); };
}

function row(job) {
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: `#/jobs/${job.id}`, title: job.name }, job.name), h("div", { class: "soft small" }, job.id)),
    h("td"), h("td", {}, h("progress", { max: 1, "aria-label": `Spent of the budget of ${job.name}` }), h("div", { class: "small" })),
    h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "small" }, when(job.created_at)));
}

function update(node, job) {
  const [, stateCell, spendCell, bestCell, trialsCell] = node.children;
  text(stateCell, state(job.state, job.stop_reason));
  stateCell.className = `state ${job.state}`;
  spendCell.children[0].value = job.progress.budget_used;
  text(spendCell.children[1], job.budget.usd === null ? usd(job.spend.usd) : `${usd(job.spend.usd)} of ${usd(job.budget.usd)}`);
  text(bestCell, job.best === null ? "–" : `${figure(job.best.metric)}`);
  text(trialsCell, String(Object.values(job.progress.trials).reduce((sum, count) => sum + count, 0)));
}
