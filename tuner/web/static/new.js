// The form to submit a job, with the job's plan next to it.

import { call, notifyTabs, newKey } from "./api.js";
import { fill, h, loading, problem, showMessage } from "./dom.js";
import { errorWithLine, showFieldErrors } from "./fields.js";
import { planDisplay } from "./plan.js";

const PLAN_AFTER_MS = 500, KEPT_KEY = "tuner.submission", OTHER = "";
const EXAMPLE = `name: digits
trainable: trainables.digits_mlp:train
objective: {metric: val_accuracy, mode: max}
search_space:
  learning_rate: {type: float, low: 1.0e-3, high: 0.3, log: true}
  width: {type: int, low: 16, high: 128, log: true}
fidelity: {unit: epoch, min: 1, max: 9}
budget: {usd: 0.001, wall_clock: 2m}
tags: {project: demo}
`;

/** Load the YAML parser, which also reads JSON. */
function yaml() {
  yaml.loaded ??= new Promise((done, failed) => document.head.append(
    h("script", { src: "static/vendor/js-yaml.min.js", onload: () => done(jsyaml), onerror: () => { yaml.loaded = undefined; failed(new Error("a file of the page could not be loaded; load it again")); } })));
  return yaml.loaded;
}

// The fields of a request for a job, in the order in which they are written. Of `objective` and `objectives`, a job has one.
const FIELDS = ["name", "trainable", "kind", "package", "objective", "objectives", "search_space", "constants", "fidelity", "budget", "resources", "algorithm", "stop", "confirm", "start", "constraints",
  "checkpoint", "artifacts", "warm_start", "teacher", "window", "priority", "tags"];
// In these fields, null is a value. In all others it is the default.
const WITH_NULLS = ["constants", "start"];

/** Copy a part of a job from the API without the fields that are null. */
const withoutNulls = (part) => Array.isArray(part) ? part.map(withoutNulls) : part === null || typeof part !== "object" ? part : Object.fromEntries(Object.entries(part).filter(([, value]) => value !== null));

/** Return the request that submits a job from the API again. Fields that are empty or null are left out. */
function requestOf(job) {
  const fields = FIELDS.filter((name) => name !== (job.objectives ? "objective" : "objectives"));
  const parts = fields.map((name) => [name, WITH_NULLS.includes(name) ? job[name] : withoutNulls(job[name])]);
  return Object.fromEntries(parts.filter(([, part]) => typeof part === "object" ? part !== null && Object.keys(part).length > 0 : part));
}

/** Return what a job tunes: its trainable, or its command. */
const tunedBy = (job) => job?.trainable ?? job?.command;

/** Show the form in `main`. Return a function that removes it. */
export async function newPage(main) {
  document.title = "New job · tuner";
  const reader = await yaml();
  const form = new Form(reader);
  fill(main, h("h1", { tabindex: "-1" }, "New job"), form.node);
  form.showOptions();
  form.loadTrainables();
  form.onEdit();
  return () => form.end();
}

/** Return a copy of a job with the objective and the search space that a trainable suggests. A part without a suggestion is not changed. */
function withSuggestion({ objectives, ...job }, trainable) {
  const goal = trainable?.objective ? { objective: trainable.objective } : objectives ? { objectives } : {};
  return { ...job, ...goal, ...(trainable?.search_space ? { search_space: trainable.search_space } : {}) };
}

class Form {
  constructor(reader) {
    this.reader = reader;
    this.busy = false;
    const field = (id, label, input) => h("p", {}, h("label", { for: id }, label), input);
    this.trainable = h("select", { id: "trainable", onchange: () => this.onTrainableChange() });
    this.trainablesStatus = h("div", { class: "small" }, loading("Looking for trainables…"));
    this.otherInput = h("input", { id: "other", placeholder: "my_module:train", spellcheck: "false", oninput: () => this.set(["trainable"], this.otherInput.value.trim()) });
    this.otherField = h("p", { hidden: true }, h("label", { for: "other" }, "As module:function"), this.otherInput);
    this.name = h("input", { id: "name", oninput: () => this.set(["name"], this.name.value) });
    this.usd = h("input", { id: "usd", type: "number", min: 0, step: "any", inputmode: "decimal", oninput: () => this.set(["budget", "usd"], this.usd.value === "" ? null : Number(this.usd.value)) });
    this.market = h("select", { id: "market", onchange: () => this.set(["resources", "market"], this.market.value) },
      [["on_demand", "on demand"], ["spot", "spot"], ["spot_with_fallback", "spot, or on demand if spot is not available"]].map(([value, words]) => h("option", { value }, words)));
    this.source = h("textarea", { id: "source", rows: 18, spellcheck: "false", "aria-describedby": "source-help", oninput: () => this.onEdit() }, EXAMPLE);
    this.button = h("button", {}, "Submit");
    this.planStatus = loading("Making the plan…");
    this.planPlace = h("div", { class: "plan", "aria-live": "polite" });
    this.errorPlace = h("div");
    this.node = h("form", { class: "new", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      h("div", {},
        h("div", { class: "fields" }, field("trainable", "Trainable", this.trainable), this.otherField, field("name", "Name", this.name), field("usd", "Budget, in dollars", this.usd), field("market", "Machines", this.market)),
        this.trainablesStatus,
        h("p", {}, h("label", { for: "source" }, "The whole job"), this.source),
        h("p", { id: "source-help", class: "soft small" }, "YAML or JSON, as for tuner submit. What you choose above is written here.")),
      h("section", { "aria-label": "Plan" }, h("h2", {}, "Plan"), this.planStatus, this.planPlace, this.errorPlace, h("div", { class: "actions" }, this.button)));
  }

  end() {
    clearTimeout(this.timer);
    this.planRequest?.abort();
  }

  /** List the trainables. If the user has already typed something, it is kept. */
  async loadTrainables() {
    fill(this.trainablesStatus, loading("Looking for trainables…"));
    try {
      const { items, truncated } = await call("/trainables");
      this.known = items;
      fill(this.trainablesStatus, truncated ? h("p", { class: "soft" }, "Not all files were read. Use Other… to name a trainable that is missing from this list.") : null);
    } catch (error) {
      this.known = [];
      fill(this.trainablesStatus, problem(error), h("button", { type: "button", class: "quiet small", onclick: () => this.loadTrainables() }, "Try again"));
    }
    if (this.source.value === EXAMPLE && this.known.length && !this.known.some((each) => each.trainable === this.read().job.trainable)) await this.replaceExample();
    this.showOptions();
  }

  /** Replace the example in the form, because its trainable is not available. If the trainable of the newest job is available, use that job,
   * and otherwise the first available trainable. */
  async replaceExample() {
    let last;
    try {
      last = (await call("/jobs?limit=1")).items[0];
    } catch {
      last = undefined;
    }
    if (this.source.value !== EXAMPLE) return;
    const usable = this.known.filter((known) => !known.error), { job } = this.read();
    if (usable.length === 0) return;
    if (usable.some((known) => known.trainable === last?.trainable))
      return this.write(requestOf(last));
    const [first] = usable;
    this.write(withSuggestion({ ...job, name: first.trainable.split(/[.:]/).at(-2), trainable: first.trainable }, first));
  }

  showOptions() {
    const current = tunedBy(this.read().job) ?? "", names = (this.known ?? []).filter((known) => !known.error).map((known) => known.trainable);
    if (typeof current === "string" && current && !names.includes(current)) names.unshift(current);
    const isOther = !this.otherField.hidden;
    fill(this.trainable, names.map((name) => h("option", { value: name, selected: name === current && !isOther }, name)),
      h("option", { value: OTHER, selected: isOther }, "Other…"));
  }

  /** Parse the text of the form. Return `{job}`, or `{error}` if the text is not a job. */
  read() {
    try {
      const job = this.reader.load(this.source.value, { schema: this.reader.CORE_SCHEMA });
      if (job === null || typeof job !== "object" || Array.isArray(job)) throw new Error("write a job, such as the example: name, trainable, objective, …");
      return { job };
    } catch (error) {
      return { error: { title: "The job cannot be read", detail: error.reason ? `${error.reason}, in line ${(error.mark?.line ?? 0) + 1}` : error.message } };
    }
  }

  write(job) {
    this.source.value = this.reader.dump(job, { flowLevel: 2, lineWidth: 110, noRefs: true });
    this.onEdit();
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
  onTrainableChange() {
    const name = this.trainable.value;
    this.otherField.hidden = name !== OTHER;
    if (name === OTHER) { this.otherInput.focus(); return; }
    const trainable = this.known?.find((known) => known.trainable === name), { job } = this.read();
    if (job === undefined || name === job.command) return;
    const { command, metrics_pattern, ...rest } = job;
    this.write(withSuggestion({ ...rest, trainable: name }, trainable));
    if (trainable && !(trainable.search_space && trainable.objective)) this.importTrainable(name);
  }

  /** Have the service import a trainable, because a computed search space cannot be read from the source text. */
  async importTrainable(name) {
    const before = this.source.value;
    fill(this.trainablesStatus, loading(`Importing ${name}…`));
    let trainable;
    try {
      trainable = await call(`/trainables/${encodeURIComponent(name)}`);
    } catch (error) {
      if (this.trainable.value === name) fill(this.trainablesStatus, problem(error));
      return;
    }
    if (this.trainable.value !== name) return;
    fill(this.trainablesStatus, trainable.error ? h("p", { class: "fault" }, `${name} cannot be tuned: ${trainable.error}`) : null);
    if (this.source.value === before) this.write(withSuggestion(this.read().job, trainable));
  }

  onEdit() {
    const { job } = this.read();
    if (job !== undefined) {
      for (const [input, value] of [[this.name, job.name], [this.usd, job.budget?.usd], [this.market, job.resources?.market ?? "on_demand"]])
        if (document.activeElement !== input) input.value = value ?? "";
      if (this.known && this.otherField.hidden && this.trainable.value !== tunedBy(job)) this.showOptions();
    }
    clearTimeout(this.timer);
    this.planRequest?.abort();
    this.planPlace.setAttribute("aria-busy", "true");
    this.planStatus.hidden = false;
    this.timer = setTimeout(() => this.plan(), PLAN_AFTER_MS);
  }

  fields() {
    const pointer = this.read().job?.command === undefined ? "/trainable" : "/command";
    return { "/name": this.name, [pointer]: this.otherField.hidden ? this.trainable : this.otherInput, "/budget/usd": this.usd, "/resources/market": this.market };
  }

  /** Show an error: errors of fields next to the field, all others with their line. */
  showErrors(error) {
    showFieldErrors(this.fields(), error.errors ?? []);
    const shown = problem(error);
    if (error.errors?.length) fill(shown.querySelector("ul"), error.errors.map((each) => errorWithLine(this.source, each)));
    return shown;
  }

  async plan() {
    const { job, error } = this.read();
    let shown;
    showFieldErrors(this.fields(), []);
    if (error) shown = problem(error);
    else {
      const planRequest = (this.planRequest = new AbortController());
      try {
        shown = planDisplay(await call("/plans", { method: "POST", body: job, signal: planRequest.signal }));
      } catch (error) {
        if (error.name === "AbortError") return;
        shown = this.showErrors(error);
      }
      if (planRequest !== this.planRequest) return;
    }
    shown.removeAttribute("role");
    fill(this.planPlace, shown);
    this.planPlace.removeAttribute("aria-busy");
    this.planStatus.hidden = true;
  }

  /** Submit the job. The same text has the same idempotency key, even after a lost answer or a reload, so it creates only one job. */
  async submit() {
    const { job, error } = this.read();
    if (error) { fill(this.errorPlace, problem(error)); return; }
    if (this.busy) return;
    this.busy = this.button.disabled = true;
    fill(this.errorPlace);
    const { planning, ...body } = job; // a section for plans, which `POST /jobs` refuses
    const text = JSON.stringify(body);
    let kept = JSON.parse(sessionStorage.getItem(KEPT_KEY) ?? "null");
    if (kept?.body !== text) kept = { body: text, key: newKey() };
    sessionStorage.setItem(KEPT_KEY, JSON.stringify(kept));
    try {
      const created = await call("/jobs", { method: "POST", body, headers: { "Idempotency-Key": kept.key } });
      sessionStorage.removeItem(KEPT_KEY);
      notifyTabs(created.id);
      showMessage("The job was submitted.");
      location.hash = `#/jobs/${created.id}`;
    } catch (error) {
      fill(this.errorPlace, this.showErrors(error));
    } finally {
      this.busy = this.button.disabled = false;
    }
  }
}
