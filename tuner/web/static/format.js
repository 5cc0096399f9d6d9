// How figures are shown. What is not known says so, and is never zero.

const UNKNOWN = "–";

/** Dollars: cents from a dollar on, up to six decimals below. */
export function usd(amount) {
  if (amount === null || amount === undefined) return UNKNOWN;
  const size = Math.abs(amount);
  if (size === 0) return "$0";
  if (size >= 1) return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  const decimals = Math.min(6, Math.max(2, 3 - Math.ceil(Math.log10(size))));
  return `$${amount.toFixed(decimals)}`;
}

/** Dollars with as many decimals as those of `whole` need, so that a figure that grows does not jump. */
export function metered(amount, whole) {
  if (amount === null || amount === undefined) return UNKNOWN;
  const decimals = whole >= 10 ? 2 : Math.min(6, Math.max(2, 3 - Math.floor(Math.log10(Math.max(whole, 1e-6)))));
  return `$${amount.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })}`;
}

/** Dollars at an axis: no longer than they need be. */
export function dollars(amount) {
  return `$${Number(amount.toFixed(6)).toLocaleString("en-US", { maximumFractionDigits: 6 })}`;
}

/** A metric or parameter, to four significant digits. */
export function figure(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return String(Number(value.toPrecision(4)));
}

export function share(part) {
  return `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

export function when(text) {
  return text === null || text === undefined ? UNKNOWN : new Date(text).toLocaleString();
}

/** A trial's name without what all have in common. */
export function short(trial) {
  return trial.replace(/^trial_0*(?=\d)/, "#");
}

/** A state with a sign, so that colour is not all that tells; `words` are shown instead of its name. */
export function state(name, reason, words = name) {
  const signs = { queued: "◷", pending: "◷", running: "▶", paused: "‖", succeeded: "✓", completed: "✓", cancelled: "■", stopped: "■", failed: "✗" };
  return `${signs[name] ?? ""} ${words}${reason ? ` (${reason.replaceAll("_", " ")})` : ""}`;
}
