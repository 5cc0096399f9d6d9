// The form to submit a job, with the job's plan next to it.

import { call, changed, newKey } from "./api.js";
import { fill, h, loading, problem, say } from "./dom.js";
import { located, mark } from "./fields.js";
import { plan } from "./plan.js";

const PLAN_AFTER_MS = 500, KEPT = "tuner.submission", OTHER = "";
const EXAMPLE = `name: digits
trainable: trainables.digits_mlp:train
objective: {metric: val_accuracy, mode: max}
search_space:
  learning_rate: {type: float, low: 1.0e-3, high: 0.3, log: true}
  width: {type: int, low: 16, high: 128, log: true}
fidelity: {unit: epoch, min: 1, max: 9, reduction_factor: 3}
budget: {usd: 0.001, wall_clock: 2m}
tags: {project: demo}
`;

/** Load the YAML parser, which also reads JSON. */
function yaml() {
  yaml.loaded ??= new Promise((done, failed) => document.head.append(
    h("script", { src: "static/vendor/js-yaml.min.js", onload: () => done(jsyaml), onerror: () => { yaml.loaded = undefined; failed(new Error("a file of the page could not be loaded; load it again")); } })));
  return yaml.loaded;
}

/** Copy a job from the API without the fields that are null. */
const said = (part) => Array.isArray(part) ? part.map(said) : part === null || typeof part !== "object" ? part : Object.fromEntries(Object.entries(part).filter(([, value]) => value !== null));

/** Return what a job tunes: its trainable, or its command. */
const entry = (job) => job?.trainable ?? job?.command;

/** Show the form in `main`. Return a function that removes it. */
export async function newPage(main) {
  document.title = "New job · tuner";
  const reader = await yaml();
  const form = new Form(reader);
  fill(main, h("h1", { tabindex: "-1" }, "New job"), form.node);
  form.list();
  form.suggest();
  form.edited();
  return () => form.end();
}

/** Create a job with the objective and the search space that a trainable suggests, if it does. */
function suggested({ objectives, ...job }, found) {
  const aim = found?.objective ? { objective: found.objective } : objectives ? { objectives } : {};
  return { ...job, ...aim, ...(found?.search_space ? { search_space: found.search_space } : {}) };
}

class Form {
  constructor(reader) {
    this.reader = reader;
    this.busy = false;
    const field = (id, label, input) => h("p", {}, h("label", { for: id }, label), input);
    this.trainable = h("select", { id: "trainable", onchange: () => this.chose() });
    this.listing = h("div", { class: "small" }, loading("Looking for trainables…"));
    this.other = h("input", { id: "other", placeholder: "my_module:train", spellcheck: "false", oninput: () => this.set(["trainable"], this.other.value.trim()) });
    this.named = h("p", { hidden: true }, h("label", { for: "other" }, "As module:function"), this.other);
    this.name = h("input", { id: "name", oninput: () => this.set(["name"], this.name.value) });
    this.usd = h("input", { id: "usd", type: "number", min: 0, step: "any", inputmode: "decimal", oninput: () => this.set(["budget", "usd"], this.usd.value === "" ? null : Number(this.usd.value)) });
    this.market = h("select", { id: "market", onchange: () => this.set(["resources", "market"], this.market.value) },
      [["on_demand", "on demand"], ["spot", "spot"], ["spot_with_fallback", "spot, on demand where there is none"]].map(([value, words]) => h("option", { value }, words)));
    this.source = h("textarea", { id: "source", rows: 18, spellcheck: "false", "aria-describedby": "source-help", oninput: () => this.edited() }, EXAMPLE);
    this.button = h("button", {}, "Submit");
    this.planning = loading("Making the plan…");
    this.planned = h("div", { class: "plan", "aria-live": "polite" });
    this.failed = h("div");
    this.node = h("form", { class: "new", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      h("div", {},
        h("div", { class: "fields" }, field("trainable", "Trainable", this.trainable), this.named, field("name", "Name", this.name), field("usd", "Budget, in dollars", this.usd), field("market", "Machines", this.market)),
        this.listing,
        h("p", {}, h("label", { for: "source" }, "The whole job"), this.source),
        h("p", { id: "source-help", class: "soft small" }, "YAML or JSON, as for tuner submit. What you choose above is written here.")),
      h("section", { "aria-label": "Plan" }, h("h2", {}, "Plan"), this.planning, this.planned, this.failed, h("div", { class: "actions" }, this.button)));
  }

  end() {
    clearTimeout(this.timer);
    this.asking?.abort();
  }

  /** List the trainables. If the user has already typed something, it is kept. */
  async suggest() {
    fill(this.listing, loading("Looking for trainables…"));
    try {
      const { items, truncated } = await call("/trainables");
      this.known = items;
      fill(this.listing, truncated ? h("p", { class: "soft" }, "There are more files than were read. A trainable that is missing can be named with Other….") : null);
    } catch (error) {
      this.known = [];
      fill(this.listing, problem(error), h("button", { type: "button", class: "quiet small", onclick: () => this.suggest() }, "Try again"));
    }
    if (this.source.value === EXAMPLE && this.known.length && !this.known.some((one) => one.trainable === this.read().job.trainable)) await this.own();
    this.list();
  }

  /** Replace the example if its trainable is not available: by the newest job if its trainable is, or else by the first one that is. */
  async own() {
    let last;
    try {
      last = (await call("/jobs?limit=1")).items[0];
    } catch {
      last = undefined;
    }
    if (this.source.value !== EXAMPLE) return;
    const usable = this.known.filter((one) => !one.error), { job } = this.read();
    if (usable.length === 0) return;
    if (usable.some((one) => one.trainable === last?.trainable))
      return this.write(said(Object.fromEntries(["name", "trainable", "kind", last.objectives ? "objectives" : "objective", "search_space", "fidelity", "budget", "tags"].map((part) => [part, said(last[part])]))));
    const [first] = usable;
    this.write(suggested({ ...job, name: first.trainable.split(/[.:]/).at(-2), trainable: first.trainable }, first));
  }

  list() {
    const now = entry(this.read().job) ?? "", names = (this.known ?? []).filter((one) => !one.error).map((one) => one.trainable);
    if (typeof now === "string" && now && !names.includes(now)) names.unshift(now);
    const isNamed = !this.named.hidden;
    fill(this.trainable, names.map((name) => h("option", { value: name, selected: name === now && !isNamed }, name)),
      h("option", { value: OTHER, selected: isNamed }, "Other…"));
  }

  /** Parse the text of the form. Return `{job}`, or `{wrong}`, an error, if the text is not a job. */
  read() {
    try {
      const job = this.reader.load(this.source.value, { schema: this.reader.CORE_SCHEMA });
      if (job === null || typeof job !== "object" || Array.isArray(job)) throw new Error("write a job, such as the example: name, trainable, objective, …");
      return { job };
    } catch (error) {
      return { wrong: { title: "This cannot be read", detail: error.reason ? `${error.reason}, in line ${(error.mark?.line ?? 0) + 1}` : error.message } };
    }
  }

  write(job) {
    this.source.value = this.reader.dump(job, { flowLevel: 2, lineWidth: 110, noRefs: true });
    this.edited();
  }

  set(path, value) {
    const { job } = this.read();
    if (job === undefined) return;
    const [first, second] = path;
    if (second === undefined) job[first] = value;
    else job[first] = { ...job[first], [second]: value };
    this.write(job);
  }

  /** Use the objective and the search space that the author of the chosen trainable suggests. */
  chose() {
    const name = this.trainable.value;
    this.named.hidden = name !== OTHER;
    if (name === OTHER) { this.other.focus(); return; }
    const found = this.known?.find((one) => one.trainable === name), { job } = this.read();
    if (job === undefined || name === job.command) return;
    const { command, metrics_pattern, ...rest } = job;
    this.write(suggested({ ...rest, trainable: name }, found));
    if (found && !(found.search_space && found.objective)) this.ask(name);
  }

  /** Have the service import a trainable, because a computed search space cannot be read from the source text. */
  async ask(name) {
    const before = this.source.value;
    fill(this.listing, loading(`Importing ${name}…`));
    let found;
    try {
      found = await call(`/trainables/${encodeURIComponent(name)}`);
    } catch (error) {
      if (this.trainable.value === name) fill(this.listing, problem(error));
      return;
    }
    if (this.trainable.value !== name) return;
    fill(this.listing, found.error ? h("p", { class: "fault" }, `${name} cannot be tuned: ${found.error}`) : null);
    if (this.source.value === before) this.write(suggested(this.read().job, found));
  }

  edited() {
    const { job } = this.read();
    if (job !== undefined) {
      for (const [input, value] of [[this.name, job.name], [this.usd, job.budget?.usd], [this.market, job.resources?.market ?? "on_demand"]])
        if (document.activeElement !== input) input.value = value ?? "";
      if (this.known && this.named.hidden && this.trainable.value !== entry(job)) this.list();
    }
    clearTimeout(this.timer);
    this.asking?.abort();
    this.planned.setAttribute("aria-busy", "true");
    this.planning.hidden = false;
    this.timer = setTimeout(() => this.plan(), PLAN_AFTER_MS);
  }

  fields() {
    const pointer = this.read().job?.command === undefined ? "/trainable" : "/command";
    return { "/name": this.name, [pointer]: this.named.hidden ? this.trainable : this.other, "/budget/usd": this.usd, "/resources/market": this.market };
  }

  /** Show an error: errors of fields next to the field, all others with their line. */
  refused(error) {
    mark(this.fields(), error.errors ?? []);
    const shown = problem(error);
    if (error.errors?.length) fill(shown.querySelector("ul"), error.errors.map((one) => located(this.source, one)));
    return shown;
  }

  async plan() {
    const { job, wrong } = this.read();
    let shown;
    mark(this.fields(), []);
    if (wrong) shown = problem(wrong);
    else {
      const asking = (this.asking = new AbortController());
      try {
        shown = plan(await call("/plans", { method: "POST", body: job, signal: asking.signal }));
      } catch (error) {
        if (error.name === "AbortError") return;
        shown = this.refused(error);
      }
      if (asking !== this.asking) return;
    }
    shown.removeAttribute("role");
    fill(this.planned, shown);
    this.planned.removeAttribute("aria-busy");
    this.planning.hidden = true;
  }

  /** Submit the job. The same text has the same idempotency key, even after a lost answer or a reload, so it creates only one job. */
  async submit() {
    const { job, wrong } = this.read();
    if (wrong) { fill(this.failed, problem(wrong)); return; }
    if (this.busy) return;
    this.busy = this.button.disabled = true;
    fill(this.failed);
    const body = JSON.stringify(job);
    let kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    if (kept?.body !== body) kept = { body, key: newKey() };
    sessionStorage.setItem(KEPT, JSON.stringify(kept));
    try {
      const made = await call("/jobs", { method: "POST", body: job, headers: { "Idempotency-Key": kept.key } });
      sessionStorage.removeItem(KEPT);
      changed(made.id);
      say("The job was submitted.");
      location.hash = `#/jobs/${made.id}`;
    } catch (error) {
      fill(this.failed, this.refused(error));
    } finally {
      this.busy = this.button.disabled = false;
    }
  }
}
