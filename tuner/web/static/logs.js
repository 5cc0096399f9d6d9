// The output of a trial's attempt, updated live while it runs.

import { call } from "./api.js";
import { fill, h, problem, showMessage, text } from "./dom.js";

const EVERY_MS = 3000, KEPT_BYTES = 512 * 1024, PRINTED_NOTHING = 404;

export class Logs {
  constructor(job, trial, attempt = null) {
    this.path = `/jobs/${job}/trials/${trial}/logs`;
    this.attempt = attempt; // the chosen attempt; null: the newest one with output
    this.shown = null;
    this.turn = 0;
    this.after = 0;
    this.hasEnded = false; // the trial has ended
    this.picker = h("select", { id: "attempt", onchange: () => { this.attempt = Number(this.picker.value); this.begin(); } });
    this.wrapBox = h("input", { id: "wraps", type: "checkbox", checked: true, onchange: () => this.textPlace.classList.toggle("wraps", this.wrapBox.checked) });
    this.copy = h("button", { type: "button", class: "quiet small", onclick: () => this.copyText() }, "Copy");
    this.status = h("p", { class: "soft small" }, "Loading…");
    this.failed = h("div");
    this.textPlace = h("pre", { class: "log wraps", tabindex: "0", role: "region", "aria-label": "What it printed", hidden: true });
    this.tools = h("div", { class: "log-tools", hidden: true }, h("label", { for: "attempt" }, "Attempt"), this.picker,
      h("span", { class: "check" }, this.wrapBox, h("label", { for: "wraps" }, "Wrap lines")), this.copy);
    this.node = h("div", {}, this.tools, this.failed, this.textPlace, this.status);
    this.begin();
  }

  begin() {
    this.turn += 1;
    this.after = 0;
    clearTimeout(this.timer);
    this.load(this.turn);
  }

  end() {
    this.turn += 1;
    clearTimeout(this.timer);
  }

  async load(turn) {
    const attempt = this.attempt === null ? "" : `&attempt=${this.attempt}`;
    let isLive = true;
    try {
      const output = await call(`${this.path}?tail=${KEPT_BYTES}${attempt}&after=${this.after}`);
      if (turn !== this.turn) return;
      fill(this.failed);
      if (this.after > 0 && output.attempt !== this.shown) { this.begin(); return; }
      this.show(output);
      isLive = (!output.complete && !output.ended) || (this.attempt === null && !this.hasEnded);
    } catch (error) {
      if (turn !== this.turn) return;
      isLive = !this.hasEnded;
      if (error.status === PRINTED_NOTHING) text(this.status, `${error.detail || "The trial has printed nothing yet"}.`.replace(/\.\.$/, "."));
      else fill(this.failed, problem(error));
    }
    if (isLive) this.timer = setTimeout(() => this.load(turn), EVERY_MS);
  }

  show(output) {
    const first = this.after === 0, isAtEnd = first || this.textPlace.scrollTop + this.textPlace.clientHeight >= this.textPlace.scrollHeight - 8;
    this.shown = output.attempt;
    if (String(output.attempts) !== this.known) {
      this.known = String(output.attempts);
      fill(this.picker, output.attempts.map((number) => h("option", { value: number }, number)));
    }
    this.picker.value = String(output.attempt);
    if (first) { this.textPlace.textContent = output.text; this.omittedBytes = 0; this.isCut = false; }
    else if (output.text) this.textPlace.append(output.text);
    this.omittedBytes += output.bytes_left_out;
    if (this.textPlace.textContent.length > 2 * KEPT_BYTES) { this.textPlace.textContent = this.textPlace.textContent.slice(-KEPT_BYTES); this.isCut = true; }
    this.after = output.bytes_until;
    this.textPlace.hidden = this.tools.hidden = false;
    // A read of KEPT_BYTES returns all that is stored, so missing bytes are those between the stored beginning and the stored end.
    const omitted = this.omittedBytes > 0 ? ` ${this.omittedBytes} bytes in the middle were not stored.` : "";
    const cut = this.isCut ? " Only the newest part is shown here; load the page again to see the stored beginning." : "";
    text(this.status, `${output.complete ? "Complete." : output.ended ? "The worker was lost, and with it the output of its last seconds." : "● Live: stored every few seconds."}${omitted}${cut}`);
    if (isAtEnd) this.textPlace.scrollTop = this.textPlace.scrollHeight;
  }

  async copyText() {
    try {
      await navigator.clipboard.writeText(this.textPlace.textContent);
      showMessage("The log was copied.");
    } catch {
      getSelection().selectAllChildren(this.textPlace);
      showMessage("The log is selected: copy it with the keyboard.");
    }
  }
}
