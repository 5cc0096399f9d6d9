// The display of a plan before a job is submitted.

import { h, table, warningList } from "./dom.js";
import { duration, figure, share, usd } from "./format.js";

/** Create the display of `plan`, an answer of `POST /v1/plans`. */
export function planDisplay(plan) {
  const facts = [
    ["Cost", usd(plan.usd.expected), `${usd(plan.usd.low)} to ${usd(plan.usd.high)}`],
    ["Time", duration(plan.finish_seconds.expected), `${duration(plan.finish_seconds.low)} to ${duration(plan.finish_seconds.high)}`],
    ["Trials", figure(Math.round(plan.trials.expected)), `${figure(plan.trials.low)} to ${figure(plan.trials.high)}`],
  ];
  if (plan.best) facts.push(["Best", figure(plan.best.expected), `${figure(plan.best.low)} to ${figure(plan.best.high)}`]);
  if (plan.target) facts.push(["Meets the target", share(plan.target.chance), ""]);
  return h("div", {},
    h("dl", { class: "facts" }, facts.map(([name, value, range]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("div", { class: "soft small" }, range))))),
    warningList(plan.warnings),
    table("Rungs", ["To step", "Trials", "Cost", "GPU-hours"],
      plan.rungs.map((rung) => [rung.step, figure(Math.round(10 * rung.trials) / 10), usd(rung.usd), figure(rung.gpu_hours)]), { numeric: [0, 1, 2, 3] }),
    h("details", {}, h("summary", {}, "Alternatives"),
      table("Alternatives", ["Method", "Cost", "Time", "Trials"],
        plan.comparisons.map((method) => [method.name.replaceAll("_", " "), usd(method.usd), duration(method.finish_seconds), method.trials]), { numeric: [1, 2, 3] })),
    h("p", { class: "soft small" }, `Step times: ${plan.inputs.evidence.source === "none" ? "not known, assumed" : plan.inputs.evidence.source}. Nothing has run.`));
}
