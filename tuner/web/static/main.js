// Entry point: selects the page to show, and asks for the key.

import { call, key, setKey, takeKey } from "./api.js";
import { goToRay } from "./dashboards.js";
import { fill, h, loading, problem } from "./dom.js";
import { jobPage } from "./job.js";
import { jobsPage } from "./jobs.js";
import { newPage } from "./new.js";
import { spendPage } from "./spend.js";

const main = document.getElementById("main");
let leave = () => {}, turn = 0, knownKey = "";

async function route() {
  const ownTurn = (turn += 1);
  leave();
  leave = () => {};
  const path = location.hash.replace(/^#\/?/, "");
  markNavigation(path);
  if (key() === "") { askKey(); return; }
  learnRole();
  const job = /^jobs\/([A-Za-z0-9_-]+)(?:\?(.*))?$/.exec(path);
  const ray = /^ray(?:\/([A-Za-z0-9_-]*))?$/.exec(path);
  const place = h("div", {}, loading());
  try {
    fill(main, place);
    let leavePage;
    if (ray) {
      if (await goToRay(ray[1])) return;
      location.replace(`#/jobs/${ray[1]}`);
      return;
    }
    if (job) leavePage = await jobPage(place, job[1], new URLSearchParams(job[2] ?? ""));
    else if (path === "new") leavePage = await newPage(place);
    else if (path === "spend") leavePage = await spendPage(place);
    else leavePage = await jobsPage(place);
    if (ownTurn !== turn) leavePage();
    else { leave = leavePage; main.querySelector("h1")?.focus({ preventScroll: true }); }
  } catch (error) {
    if (ownTurn === turn && error.status !== 401) fill(place, h("h1", {}, "This page cannot be shown"), problem(error), h("p", {}, h("a", { href: "#/" }, "All jobs")));
  }
}

/** Find out the role of the key. The page hides actions that a viewer may not use; the service checks the role in any case. */
async function learnRole() {
  const askedKey = key();
  if (askedKey === knownKey) return;
  knownKey = askedKey;
  delete document.documentElement.dataset.role;
  if (!askedKey.startsWith("tnr_")) return;
  try {
    const user = await call("/whoami");
    if (key() === askedKey) document.documentElement.dataset.role = user.role;
  } catch { knownKey = ""; } // The role is requested again when the next page is shown.
}

function markNavigation(path) {
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.getAttribute("href").slice(2);
    if (target === path || (target === "" && path.startsWith("jobs/"))) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function askKey(refused = false) {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close(); // an open modal dialog would block input to the new page
  leave();
  leave = () => {};
  turn += 1;
  document.title = "Key · tuner";
  const input = h("input", { id: "key", type: "password", required: true, autocomplete: "current-password" });
  fill(main, h("h1", {}, "The key"),
    refused ? problem({ title: "The service refused the key", detail: "Copy the key again. It is a single line." }) : null,
    h("form", { class: "key", onsubmit: (event) => { event.preventDefault(); setKey(input.value); route(); } },
      h("p", {}, "The service stores its key on its own machine, in ", h("code", {}, "~/.tuner/api_key"), " unless ", h("code", {}, "TUNER_API_KEY"), " or ",
        h("code", {}, "TUNER_HOME"), " is set. Every user has another key, which begins with tnr_. This browser stores the key until you change it here."),
      h("p", {}, h("label", { for: "key" }, "API key"), input), h("button", {}, "Continue")));
  input.focus();
}

document.addEventListener("key-refused", () => { setKey(""); askKey(true); });
document.getElementById("forget").addEventListener("click", () => { setKey(""); askKey(); });
// The browser would change the address, whose hash selects the page.
document.querySelector("a.skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { takeKey(); route(); });
takeKey();
route();
