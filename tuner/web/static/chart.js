// uPlot in the page's colours and width.

const WHOLE = Array.from({ length: 8 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat(); // of axes that count
const dark = matchMedia("(prefers-color-scheme: dark)");

/** A colour of the page's style. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A chart in `place`, as wide as that is. `options` are uPlot's; axes are styled here. Returns `{set, redraw, plot, end}`. */
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
    set(found) { data = found; plot.setData(found); },
    end() { watching.disconnect(); dark.removeEventListener("change", build); plot.destroy(); },
  };
}

/** The least and the most of numbers that are known, with some air. */
export function span(low, high) {
  if (low === null || !(low <= high)) return [0, 1];
  const air = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - air, high + air];
}

const SAMPLED = 4000, NINE_TENTHS = 0.9;

/** The range of all curves, and `off`, the part to show instead if few outliers would press the others flat: that with nine tenths of the
 * values, if it is less than half of the whole. Outliers are the worst values; where `mode` is null, nobody knows which these are, and
 * a twentieth is left out on each side. `points` says how many values there are, of which a sample is sorted. */
export function reach(curves, points, mode) {
  const every = Math.max(1, Math.ceil(points / SAMPLED)), some = [];
  let low = Infinity, high = -Infinity, count = 0;
  for (const ys of curves) {
    for (const value of ys) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
      if (count++ % every === 0) some.push(value);
    }
  }
  some.sort((a, b) => a - b);
  const at = (share) => some[Math.round((some.length - 1) * share)];
  const off = mode === "min" ? { low, high: at(NINE_TENTHS) } : mode === "max" ? { low: at(1 - NINE_TENTHS), high }
    : { low: at((1 - NINE_TENTHS) / 2), high: at((1 + NINE_TENTHS) / 2) };
  return { low, high, off: off.high > off.low && (off.high - off.low) * 2 < high - low ? off : null };
}
