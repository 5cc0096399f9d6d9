// The table of trials, with a column for each hyperparameter. It can be sorted by any column and filtered. Only some of the trials become
// rows of the page, so that thousands of trials can be sorted after every event.

import { announce, atMost, h, keyed, text } from "./dom.js";
import { columnsOf, trialOrder, parse } from "./filter.js";
import { short, state } from "./format.js";
import { show } from "./trial.js";

const PAGE = 25, TYPED_MS = 250;
const FINAL = ["succeeded", "cancelled", "failed"];

export class Trials {
  /** `view` is `{sort, filter}` from the address. `onViewChange(view)` is called when the user changes them. */
  constructor(model, view = {}, onViewChange = () => {}) {
    this.model = model;
    this.onViewChange = onViewChange;
    this.count = PAGE;
    this.columns = columnsOf(model.job, () => FINAL.includes(model.job.state));
    this.best = this.columns.find((column) => column.id === "best");
    this.sort = this.columns.find((column) => column.id === view.sort?.replace(/^-/, "")) ?? this.best;
    this.descending = this.sort.id === view.sort?.replace(/^-/, "") ? view.sort.startsWith("-") : this.best.falls;
    this.match = () => true;

    this.filterSoon = atMost(TYPED_MS, () => this.filterTyped());
    this.input = h("input", { id: "filter", type: "search", spellcheck: "false", autocomplete: "off", autocapitalize: "none", placeholder: this.example(),
      value: view.filter ?? null, "aria-describedby": "filter-help filter-fault", oninput: this.filterSoon });
    this.fault = h("p", { id: "filter-fault", class: "fault", role: "status", hidden: true });
    this.countText = h("p", { class: "soft small" });
    this.body = h("tbody");
    this.more = h("button", { type: "button", class: "quiet", onclick: () => { this.count += 4 * PAGE; this.update(); } }, "Show more");
    this.caption = h("caption", { class: "visually-hidden" });
    this.heads = this.columns.map((column) => this.head(column));
    this.table = h("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Table of trials" },
      h("table", { class: "trials" }, this.caption, h("thead", {}, h("tr", {}, this.heads)), this.body));
    this.node = h("div", {},
      h("div", { class: "filter" }, h("p", {}, h("label", { for: "filter" }, "Filter"), this.input), this.countText),
      h("p", { id: "filter-help", class: "soft small" }, "Compare numbers with > >= < <= =, and states and choices with name:text. Any other word is searched in all columns."),
      this.fault, this.table, this.more);
    this.filter();
  }

  /** Return an example of a filter with this job's columns. */
  example() {
    const hyperparameters = this.columns.filter((column) => column.id.startsWith("config."));
    const number = hyperparameters.find((column) => column.isNumber), choice = hyperparameters.find((column) => !column.isNumber);
    const space = this.model.job.search_space;
    return [number && `${number.name}>${space[number.name].low ?? 0}`, choice && `${choice.name}:${space[choice.name].choices[0]}`, "state:completed"]
      .filter(Boolean).slice(0, 2).join(" ");
  }

  head(column) {
    const sign = h("span", { class: "sort", "aria-hidden": "true" });
    return h("th", { scope: "col", class: classOf(column) },
      h("button", { type: "button", class: "link", onclick: () => this.sortBy(column) }, column.title, sign));
  }

  sortBy(column) {
    this.descending = column === this.sort ? !this.descending : Boolean(column.falls);
    this.sort = column;
    this.count = PAGE;
    this.update();
    announce(`${this.caption.textContent}.`);
    this.notifyView();
  }

  filterTyped() {
    this.count = PAGE;
    if (!this.filter()) return;
    this.update();
    announce(this.countText.textContent);
    this.notifyView();
  }

  /** Apply the filter that the user typed. If it is invalid, show why and keep the last valid one. */
  filter() {
    const { match, error } = parse(this.input.value, this.columns, this.model.job.objective.metric);
    text(this.fault, error ? `This filter cannot be read: ${error}.` : "");
    this.fault.hidden = !error;
    if (error) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
    if (match) this.match = match;
    return match !== undefined;
  }

  notifyView() {
    const isPlain = this.sort === this.best && this.descending === Boolean(this.best.falls);
    this.onViewChange({ sort: isPlain ? "" : `${this.descending ? "-" : ""}${this.sort.id}`, filter: this.input.value.trim() });
  }

  update() {
    const all = [...this.model.trials.values()], matching = all.filter(this.match).sort(trialOrder(this.sort, this.descending));
    keyed(this.body, matching.slice(0, this.count), (trial) => trial.id, (trial) => this.row(trial), (node, trial) => {
      this.columns.forEach((column, index) => { if (index > 0) text(node.children[index], shown(column, trial)); });
      node.className = trial.state;
      node.children[1].title = trial.reason ?? "";
    });
    this.columns.forEach((column, index) => {
      const direction = column !== this.sort ? "none" : this.descending ? "descending" : "ascending";
      if (this.heads[index].getAttribute("aria-sort") !== direction) this.heads[index].setAttribute("aria-sort", direction);
      text(this.heads[index].querySelector(".sort"), direction === "none" ? "" : this.descending ? " ▼" : " ▲");
    });
    text(this.caption, `Trials by ${this.sort.title}, ${this.descending ? "descending" : "ascending"}`);
    text(this.countText, all.length === 0 ? "No trial has begun yet."
      : matching.length === all.length ? `${all.length} trials` : `${matching.length} of ${all.length} trials`);
    this.more.hidden = matching.length <= this.count;
    this.table.hidden = matching.length === 0;
  }

  row(trial) {
    return h("tr", {},
      h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => show(this.model, trial.id) }, h("span", { class: "visually-hidden" }, "Trial "), short(trial.id))),
      this.columns.slice(1).map((column) => h("td", { class: classOf(column) })));
  }
}

function classOf(column) {
  const classes = [column.isNumber && column.id !== "trial" ? "number" : "", column.isWide ? "roomy" : ""].filter(Boolean);
  return classes.length ? classes.join(" ") : null;
}

function shown(column, trial) {
  const value = column.of(trial);
  return column.id === "state" ? state(trial.state, null, value) : column.show(value);
}
