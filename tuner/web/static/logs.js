// The output of a trial's attempt, updated live while it runs.

import { call } from "./api.js";
import { fill, h, problem, say, text } from "./dom.js";

const EVERY_MS = 3000, KEPT = 512 * 1024, PRINTED_NOTHING = 404;

export class Logs {
  constructor(job, trial, attempt = null) {
    this.path = `/jobs/${job}/trials/${trial}/logs`;
    this.attempt = attempt; // the chosen attempt; null: the newest one with output
    this.shown = null;
    this.turn = 0;
    this.after = 0;
    this.over = false; // the trial has ended
    this.picker = h("select", { id: "attempt", onchange: () => { this.attempt = Number(this.picker.value); this.begin(); } });
    this.wraps = h("input", { id: "wraps", type: "checkbox", checked: true, onchange: () => this.out.classList.toggle("wraps", this.wraps.checked) });
    this.copy = h("button", { type: "button", class: "quiet small", onclick: () => this.toClipboard() }, "Copy");
    this.said = h("p", { class: "soft small" }, "Loading…");
    this.failed = h("div");
    this.out = h("pre", { class: "log wraps", tabindex: "0", role: "region", "aria-label": "What it printed", hidden: true });
    this.tools = h("div", { class: "log-tools", hidden: true }, h("label", { for: "attempt" }, "Attempt"), this.picker,
      h("span", { class: "check" }, this.wraps, h("label", { for: "wraps" }, "Wrap lines")), this.copy);
    this.node = h("div", {}, this.tools, this.failed, this.out, this.said);
    this.begin();
  }

  begin() {
    this.turn += 1;
    this.after = 0;
    clearTimeout(this.timer);
    this.look(this.turn);
  }

  end() {
    this.turn += 1;
    clearTimeout(this.timer);
  }

  async look(turn) {
    const attempt = this.attempt === null ? "" : `&attempt=${this.attempt}`;
    let again = true;
    try {
      const found = await call(`${this.path}?tail=${KEPT}${attempt}&after=${this.after}`);
      if (turn !== this.turn) return;
      fill(this.failed);
      if (this.after > 0 && found.attempt !== this.shown) { this.begin(); return; }
      this.show(found);
      again = (!found.complete && !found.ended) || (this.attempt === null && !this.over);
    } catch (error) {
      if (turn !== this.turn) return;
      again = !this.over;
      if (error.status === PRINTED_NOTHING) text(this.said, `${error.detail || "It printed nothing yet"}.`.replace(/\.\.$/, "."));
      else fill(this.failed, problem(error));
    }
    if (again) this.timer = setTimeout(() => this.look(turn), EVERY_MS);
  }

  show(found) {
    const first = this.after === 0, follows = first || this.out.scrollTop + this.out.clientHeight >= this.out.scrollHeight - 8;
    this.shown = found.attempt;
    if (String(found.attempts) !== this.known) {
      this.known = String(found.attempts);
      fill(this.picker, found.attempts.map((number) => h("option", { value: number }, number)));
    }
    this.picker.value = String(found.attempt);
    if (first) { this.out.textContent = found.text; this.leftOut = found.bytes_left_out; }
    else if (found.text) this.out.append(found.text);
    if (this.out.textContent.length > 2 * KEPT) this.out.textContent = this.out.textContent.slice(-KEPT);
    this.after = found.bytes_until;
    this.out.hidden = this.tools.hidden = false;
    const left = this.leftOut > 0 ? ` The first ${this.leftOut} bytes are left out; tuner logs --tail shows more.` : "";
    text(this.said, `${found.complete ? "Complete." : found.ended ? "Its worker was lost, and so was the output of its last seconds." : "● Live: stored every few seconds."}${left}`);
    if (follows) this.out.scrollTop = this.out.scrollHeight;
  }

  async toClipboard() {
    try {
      await navigator.clipboard.writeText(this.out.textContent);
      say("The log was copied.");
    } catch {
      getSelection().selectAllChildren(this.out);
      say("The log is selected: copy it with the keyboard.");
    }
  }
}
