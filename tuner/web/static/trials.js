// The leaders' table.

import { h, keyed, text } from "./dom.js";
import { figure, short, state, usd } from "./format.js";
import { show } from "./trial.js";

const PAGE = 25;

export class Trials {
  constructor(model) {
    this.model = model;
    this.count = PAGE;
    this.body = h("tbody");
    this.more = h("button", { type: "button", class: "quiet", onclick: () => { this.count += 4 * PAGE; this.update(); } }, "Show more");
    const head = (words, number) => h("th", { scope: "col", class: number ? "number" : null }, words);
    this.empty = h("p", { class: "soft" }, "No trial has begun yet.");
    this.node = h("div", {}, this.empty,
      h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Trials, the best first" },
        h("table", { class: "trials" }, h("caption", { class: "unseen" }, "Trials, the best first"),
          h("thead", {}, h("tr", {}, head("Trial"), head("State"), head("Best", true), head("Newest", true), head("Steps", true), head("Cost", true), head("Attempts", true), head("Preempted", true))),
          this.body)),
      this.more);
  }

  update() {
    const all = this.model.leaders();
    keyed(this.body, all.slice(0, this.count), (trial) => trial.id, (trial) => this.row(trial), (node, trial) => {
      const cells = [state(trial.state), figure(trial.best), figure(trial.metric), String(trial.steps), usd(trial.cost_usd), String(trial.attempts), String(trial.preemptions)];
      cells.forEach((value, index) => text(node.children[index + 1], value));
      node.className = trial.state;
    });
    this.more.hidden = all.length <= this.count;
    this.empty.hidden = all.length > 0;
  }

  row(trial) {
    return h("tr", {},
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => show(this.model, trial.id) }, h("span", { class: "unseen" }, "Trial "), short(trial.id))),
      h("td"), Array.from({ length: 6 }, () => h("td", { class: "number" })));
  }
}
