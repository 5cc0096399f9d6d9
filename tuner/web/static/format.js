// Formats of numbers. An unknown value is shown as unknown, never as zero.

const UNKNOWN = "–";

/** Format dollars: two decimals from one dollar on, up to six below. */
export function usd(amount) {
  if (amount === null || amount === undefined) return UNKNOWN;
  const size = Math.abs(amount);
  if (size === 0) return "$0";
  if (size >= 1) return `$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  const decimals = Math.min(6, Math.max(2, 3 - Math.ceil(Math.log10(size))));
  return `$${amount.toFixed(decimals)}`;
}

/** Format dollars with as many decimals as `whole` needs, so that the width of a growing figure does not change. */
export function metered(amount, whole) {
  if (amount === null || amount === undefined) return UNKNOWN;
  const decimals = whole >= 10 ? 2 : Math.min(6, Math.max(2, 3 - Math.floor(Math.log10(Math.max(whole, 1e-6)))));
  return `$${amount.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })}`;
}

/** Format dollars at an axis, as short as possible. */
export function dollars(amount) {
  return `$${Number(amount.toFixed(6)).toLocaleString("en-US", { maximumFractionDigits: 6 })}`;
}

/** Format a metric or a parameter with four significant digits. */
export function figure(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return String(Number(value.toPrecision(4)));
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return UNKNOWN;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, bytes)) / 3)));
  return `${figure(Number((bytes / 1000 ** power).toPrecision(4)))} ${["bytes", "kB", "MB", "GB", "TB"][power]}`;
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

/** Return a trial's name without the prefix that all trials share. */
export function short(trial) {
  return trial.replace(/^trial_0*(?=\d)/, "#");
}

/** Create a state's label with a symbol, because colour alone does not distinguish states for all readers. `words` replaces its name. */
export function state(name, reason, words = name) {
  const signs = { queued: "◷", pending: "◷", running: "▶", paused: "‖", succeeded: "✓", completed: "✓", cancelled: "■", stopped: "■", failed: "✗" };
  return `${signs[name] ?? ""} ${words}${reason ? ` (${reason.replaceAll("_", " ")})` : ""}`;
}
