// Dashboards that the service shows itself. A link carries no header: the key is turned into a cookie for them before one is opened.

import { ask, call } from "./api.js";

const PATHS = ["/optuna/", "/ray/"];

export async function openDashboard(url) {
  const tab = window.open("", "_blank"); // at once: a browser takes a later one for a pop-up
  if (tab !== null) tab.opener = null;
  // Where the key is refused, the dashboard says so itself.
  await ask("/session", { method: "POST" }).catch(() => {});
  if (tab === null) location.assign(url);
  else tab.location.replace(url);
}

/** Leave the page for Ray's dashboard: for the page of this job in it, if one is named. Return false if there is none. */
export async function goToRay(job) {
  const url = job ? (await call(`/jobs/${job}`)).links.ray_dashboard : "/ray/";
  if (!url) return false;
  await ask("/session", { method: "POST" });
  location.replace(url);
  return true;
}

function onClick(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.button > 1 || link.origin !== location.origin || !PATHS.some((path) => link.pathname.startsWith(path))) return;
  event.preventDefault();
  openDashboard(link.href);
}

for (const kind of ["click", "auxclick"]) document.addEventListener(kind, onClick);
