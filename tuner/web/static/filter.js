// The columns of the trials table, and the language of its filter and sort order. This module does not use the page's elements.

import { figure, usd } from "./format.js";

const ENDED = { paused: "not continued", pending: "not started" };
const TERM = /\s*(?:("[^"]*"|[^\s"<>=:]+)\s*(>=|<=|==|>|<|=|:)\s*("[^"]*"|[^\s"<>=:]\S*|)|("[^"]*"|\S+))/y;

/** Return a trial's state as text. In a job that has ended, no trial is shown as paused or pending. */
export function stateWord(trial, hasEnded) {
  return (hasEnded && ENDED[trial.state]) || trial.state;
}

/** Return the columns of a job's trials. `id` is the column's name in the address and `name` in a filter. `of` returns a trial's value, or
 * null, and `show` its text. `falls` means that the first sort is descending. `isWide` columns are hidden on a narrow screen. */
export function columnsOf(job, hasEnded = () => false) {
  const best = job.objective.mode === "max", number = { isNumber: true, show: figure };
  const fixed = (id, title, of, more) => ({ id, name: id, title, of, ...number, ...more });
  const space = Object.entries(job.search_space ?? {});
  return [
    fixed("trial", "Trial", (trial) => trial.number, { show: (number) => `#${number}` }),
    fixed("state", "State", (trial) => stateWord(trial, hasEnded()), { isNumber: false, also: (trial) => `${trial.state} ${trial.reason ?? ""}` }),
    fixed("best", "Best", (trial) => trial.best, { falls: best }),
    fixed("newest", "Newest", (trial) => trial.metric, { falls: best, isWide: true }),
    fixed("steps", "Steps", (trial) => trial.steps, { falls: true }),
    fixed("paid", "Paid", (trial) => trial.cost_usd, { falls: true, show: usd }),
    ...space.map(([name, parameter]) => ({
      id: `config.${name}`, name, title: name, of: (trial) => trial.config?.[name] ?? null,
      isNumber: isNumeric(parameter), show: parameter.type === "float" ? figure : exactly,
    })),
    fixed("attempts", "Attempts", (trial) => trial.attempts, { falls: true, isWide: true }),
    fixed("preempted", "Preempted", (trial) => trial.preemptions, { falls: true, isWide: true }),
  ];
}

function isNumeric(parameter) {
  return parameter.type !== "categorical" || parameter.choices.every((choice) => typeof choice === "number");
}

function exactly(value) {
  return value === null ? figure(null) : typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Parse a filter. Return `{match}`, a predicate on trials, or `{error}`, a text that says what is wrong. */
export function parse(text, columns, metric = "") {
  const tests = [];
  if (text.split('"').length % 2 === 0) return { error: 'a " is not closed' };
  TERM.lastIndex = 0;
  while (text.slice(TERM.lastIndex).trim() !== "") {
    const term = TERM.exec(text);
    const test = term[4] === undefined ? parseComparison(unquote(term[1]), term[2], unquote(term[3]), columns, metric) : matchesWord(unquote(term[4]), columns);
    if (test.error) return test;
    tests.push(test);
  }
  return { match: (trial) => tests.every((test) => test(trial)) };
}

function unquote(text) {
  return text.replace(/^"([^"]*)"$/, "$1");
}

/** Return a predicate that matches trials whose id, or whose text in any column, contains `text`. */
function matchesWord(text, columns) {
  const wanted = text.toLowerCase();
  return (trial) => trial.id.includes(wanted) || columns.some((column) => textOf(column, trial).includes(wanted));
}

function parseComparison(name, sign, value, columns, metric) {
  const column = findColumn(name, columns, metric);
  if (column === undefined) return { error: `${name} is not a column; the columns are ${columns.map((known) => known.name).join(", ")}` };
  if (value === "") return { error: `write a ${column.isNumber ? "number" : "text"} after ${name}${sign}` };
  if (!column.isNumber) {
    const wanted = value.toLowerCase();
    if (sign === ":") return (trial) => textOf(column, trial).includes(wanted);
    if (sign === "=" || sign === "==") return (trial) => textOf(column, trial).split(" ").includes(wanted) || column.show(column.of(trial)).toLowerCase() === wanted;
    return { error: `${name} is text: write ${name}:${value}` };
  }
  const wanted = Number(column.id === "trial" ? value.replace(/^(#|trial_)/, "") : value);
  if (!Number.isFinite(wanted)) return { error: `${value} is not a number; write ${name}>0.01, for example` };
  const tests = {
    ">": (have) => have > wanted, ">=": (have) => have >= wanted, "<": (have) => have < wanted, "<=": (have) => have <= wanted,
    // A fraction also matches if it equals the rounded number that the table shows.
    "=": (have) => have === wanted || (!Number.isInteger(have) && figure(have) === figure(wanted)),
  };
  const test = tests[sign] ?? tests["="];
  return (trial) => {
    const have = column.of(trial);
    return typeof have === "number" && test(have);
  };
}

/** Find a column by its name. A hyperparameter takes precedence over another column with the same name. */
function findColumn(name, columns, metric) {
  const wanted = name.toLowerCase(), own = (column) => column.id.startsWith("config.");
  const find = (test) => columns.find((column) => own(column) && test(column)) ?? columns.find(test);
  return find((column) => column.name === name) ?? find((column) => column.id.toLowerCase() === wanted || column.name.toLowerCase() === wanted)
    ?? (name === metric ? columns.find((column) => column.id === "best") : undefined);
}

function textOf(column, trial) {
  const value = column.of(trial);
  return `${value === null ? "" : column.show(value)} ${column.also?.(trial) ?? ""}`.toLowerCase();
}

/** Return a function that compares trials by a column. Trials without a value come last in either order. Trials with equal values are ordered
 * by number. */
export function trialOrder(column, descending) {
  const sign = descending ? -1 : 1, missing = (value) => value === null || value === undefined;
  return (a, b) => {
    const left = column.of(a), right = column.of(b);
    if (missing(left) || missing(right)) return missing(left) - missing(right) || a.number - b.number;
    const difference = column.isNumber ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
    return sign * difference || a.number - b.number;
  };
}
