// Links to the dashboards that the service serves. A link cannot send the key as a header, so the page exchanges the key for a cookie
// before it opens one.

import { request, call } from "./api.js";

const PATHS = ["/optuna/", "/ray/"];

export async function openDashboard(url) {
  const tab = window.open("", "_blank"); // opened before the request, because browsers block windows that are opened later as pop-ups
  if (tab !== null) tab.opener = null;
  // An error is ignored: if the key is refused, the dashboard shows the error itself.
  await request("/session", { method: "POST" }).catch(() => {});
  if (tab === null) location.assign(url);
  else tab.location.replace(url);
}

/** Go to Ray's dashboard, or to its page of `job` if that is given. Return false if there is no dashboard. */
export async function goToRay(job) {
  const url = job ? (await call(`/jobs/${job}`)).links.ray_dashboard : "/ray/";
  if (!url) return false;
  await request("/session", { method: "POST" });
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
