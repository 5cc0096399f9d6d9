// The display of a plan before a job is submitted.

import { h, table } from "./dom.js";
import { duration, figure, share, usd } from "./format.js";

/** Create the display of `made`, an answer of `POST /v1/plans`. */
export function plan(made) {
  const facts = [
    ["Cost", usd(made.usd.expected), `${usd(made.usd.low)} to ${usd(made.usd.high)}`],
    ["Time", duration(made.finish_seconds.expected), `${duration(made.finish_seconds.low)} to ${duration(made.finish_seconds.high)}`],
    ["Trials", figure(Math.round(made.trials.expected)), `${figure(made.trials.low)} to ${figure(made.trials.high)}`],
  ];
  if (made.best) facts.push(["Best", figure(made.best.expected), `${figure(made.best.low)} to ${figure(made.best.high)}`]);
  if (made.target) facts.push(["Meets the target", share(made.target.chance), `${made.target.met} of ${made.target.runs} runs`]);
  return h("div", {},
    h("dl", { class: "facts" }, facts.map(([name, value, range]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("div", { class: "soft small" }, range))))),
    made.warnings.length ? h("div", { class: "warning" }, h("strong", {}, "Warnings"), h("ul", {}, made.warnings.map((words) => h("li", {}, words)))) : null,
    table("Rungs", ["To step", "Trials", "Cost", "GPU-hours"],
      made.rungs.map((rung) => [rung.step, figure(Math.round(10 * rung.trials) / 10), usd(rung.usd), figure(rung.gpu_hours)]), { numeric: [0, 1, 2, 3] }),
    h("details", {}, h("summary", {}, "Alternatives"),
      table("Alternatives", ["Method", "Cost", "Time", "Trials"],
        made.comparisons.map((one) => [one.name.replaceAll("_", " "), usd(one.usd), duration(one.finish_seconds), one.trials]), { numeric: [1, 2, 3] })),
    h("p", { class: "soft small" }, `Step times: ${made.inputs.evidence.source === "none" ? "not known, assumed" : made.inputs.evidence.source}. Nothing has run.`));
}
