// All jobs.

import { call, onChanged } from "./api.js";
import { fill, h, keyed, problem, text } from "./dom.js";
import { figure, state, usd, when } from "./format.js";

const EVERY_MS = 2000, PAGE = 50;

/** Shows the jobs in `main` until what is returned is called. */
export async function jobsPage(main) {
  document.title = "Jobs · tuner";
  let count = PAGE, ended = false;
  const body = h("tbody"), empty = h("p", { hidden: true }, "No job yet. ", h("a", { href: "#/new" }, "Submit the first one"), ".");
  const failed = h("div");
  const more = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => { count = Math.min(500, count + PAGE); look(); } }, "Show older");
  const head = (words) => h("th", { scope: "col" }, words);
  const wide = h("div", { class: "wide ground", role: "region", tabindex: "0", "aria-label": "Jobs, newest first" },
    h("table", { class: "jobs" }, h("caption", { class: "unseen" }, "Jobs, newest first"),
      h("thead", {}, h("tr", {}, head("Job"), head("State"), head("Spent of its budget"), head("Best"), head("Trials"), head("Submitted"))), body));
  fill(main, h("h1", { tabindex: "-1" }, "Jobs"), failed, empty, wide, more);

  async function look() {
    try {
      const found = await call(`/jobs?limit=${count}`);
      if (ended) return;
      fill(failed);
      empty.hidden = found.items.length > 0;
      wide.hidden = !empty.hidden;
      more.hidden = found.next_cursor === null || count >= 500;
      keyed(body, found.items, (job) => job.id, row, update);
    } catch (error) {
      if (!ended && failed.childElementCount === 0) fill(failed, problem(error));
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
