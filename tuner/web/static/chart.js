// Charts: uPlot with the colours of the page and the width of its container.

const WHOLE = Array.from({ length: 8 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat(); // ticks of axes with counts
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Return a colour of the page's style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Draw a chart that fills the width of `place`. The options are uPlot's; axes are styled here. Return `{set, redraw, plot, end}`. */
export function chart(place, { x, y, formatX, formatY, series, scales = {}, hooks = {}, height = 300, whole = false }) {
  let plot = null, data = [[], ...series.map(() => [])];
  const axis = (label, values, size, space) => ({
    label, size, labelSize: 18, labelGap: 0, gap: 4, space,
    values: values && ((_, splits) => splits.map((split) => (split === null ? "" : values(split)))),
    stroke: () => colour("soft"), font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
    grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false },
  });
  const build = () => {
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(200, place.clientWidth), height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
      scales: { x: { time: false, ...scales.x }, y: { ...scales.y } },
      axes: [{ ...axis(x, formatX, 28, 76), ...(whole ? { incrs: WHOLE } : {}) }, axis(y, formatY, 50, 36)],
      series: [{}, ...series],
      hooks,
    }, data, place);
  };
  build();
  const watching = new ResizeObserver(() => {
    const width = Math.max(200, place.clientWidth);
    if (width !== plot.width) plot.setSize({ width, height });
  });
  watching.observe(place);
  dark.addEventListener("change", build);
  return {
    get plot() { return plot; },
    set(columns) { data = columns; plot.setData(columns); },
    end() { watching.disconnect(); dark.removeEventListener("change", build); plot.destroy(); },
  };
}

/** Return the range of an axis: the smallest and the largest known number with a margin. */
export function axisRange(low, high) {
  if (low === null || !(low <= high)) return [0, 1];
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - margin, high + margin];
}

const SAMPLED = 4000, KEPT_SHARE = 0.9;

/** Return the range of all curves, and as `off` the range to show instead if a few outliers would flatten the other curves.
 *
 * `off` leaves out the worst tenth of the values. If `mode` is null, it is not known which values are bad, so `off` leaves out a twentieth
 * at each end. `off` is null unless it is less than half as wide as the whole range. `points` is the number of values; only a sample of
 * them is sorted. */
export function valueRange(curves, points, mode) {
  const every = Math.max(1, Math.ceil(points / SAMPLED)), sample = [];
  let low = Infinity, high = -Infinity, count = 0;
  for (const ys of curves) {
    for (const value of ys) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
      if (count++ % every === 0) sample.push(value);
    }
  }
  sample.sort((a, b) => a - b);
  const at = (share) => sample[Math.round((sample.length - 1) * share)];
  const off = mode === "min" ? { low, high: at(KEPT_SHARE) } : mode === "max" ? { low: at(1 - KEPT_SHARE), high }
    : { low: at((1 - KEPT_SHARE) / 2), high: at((1 + KEPT_SHARE) / 2) };
  return { low, high, off: off.high > off.low && (off.high - off.low) * 2 < high - low ? off : null };
}
