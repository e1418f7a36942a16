// Charts over time: lines, and stages stacked. uPlot draws them; colours come from the style sheet, so they follow light and dark.
import { amount, ms } from "./format.js";

const drawn = new Map();

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function clock(seconds) {
  const at = new Date(seconds * 1000);
  return at.getSeconds() ? `:${String(at.getSeconds()).padStart(2, "0")}` : at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

function axes(format, log) {
  const [stroke, line] = [colour("quiet"), colour("line")];
  const grid = { stroke: line, width: 1 };
  const font = "11px system-ui, sans-serif";
  // Of a logarithmic axis only the powers of ten are named: the rest would overlap.
  const filter = log ? (u, splits) => splits.map((v) => (Math.abs(Math.log10(v) % 1) < 1e-6 ? v : null)) : undefined;
  return [
    // Minutes by name, seconds between them: a date, which uPlot adds to the first, would run into the next.
    { stroke, grid, font, ticks: { stroke: line }, values: (u, splits) => splits.map(clock) },
    { stroke, grid, font, ticks: { stroke: line }, size: 62, filter, values: (u, splits) => splits.map((v) => (v === null ? "" : format(v))) },
  ];
}

// Draws `series` ([{ label, stroke, fill?, shown? }]) over `data` ([times, ...values]) into `target`, anew only where its shape has changed.
function draw(target, data, series, options) {
  const shape = JSON.stringify([series.map((one) => [one.label, one.stroke, one.width]), options.height, colour("card")]);
  const before = drawn.get(target);
  if (before?.shape === shape) {
    before.shown = options.shown;
    before.chart.setData(data);
    return;
  }
  before?.chart.destroy();
  const pad = options.pad ?? 0;
  const entry = { shape, shown: options.shown };
  entry.chart = new uPlot(
    {
      width: Math.max(target.clientWidth, 200),
      height: options.height ?? 220,
      cursor: { y: false },
      legend: { live: true },
      // Two minutes at least: uPlot would spread a lone point over years.
      scales: { x: { range: (u, first, last) => [Math.min(first ?? last, last - 120) - pad, last + pad] }, y: options.log ? { distr: 3 } : { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: axes(options.format ?? ms, options.log),
      bands: options.bands,
      series: [
        {},
        ...series.map((one, index) => ({
          spanGaps: false,
          // A slot between two without requests is a point, not a line.
          points: { show: options.points ?? data[0].length < 40, size: 4 },
          value: (u, v, s, at) => (at === null || v === null ? "–" : (options.format ?? ms)(entry.shown ? entry.shown[index][at] : v)),
          ...one,
        })),
      ],
    },
    data,
    target,
  );
  drawn.set(target, entry);
}

new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target)?.chart;
    if (chart && target.clientWidth && chart.width !== target.clientWidth) chart.setSize({ width: target.clientWidth, height: chart.height });
  }
}).observe(document.documentElement);
window.addEventListener("resize", () => {
  for (const [target, { chart }] of drawn) chart.setSize({ width: target.clientWidth, height: chart.height });
});

// Every slot from the first to the last of these, those in which nothing ended included: time without requests is a gap.
function slotTimes(slots, seconds) {
  const starts = slots.map((slot) => slot.start);
  const last = Math.max(...starts);
  // Two at least: uPlot does not know how wide the bar of a lone one is, and draws it at the wrong end.
  const first = Math.min(...starts, last - seconds);
  return starts.length ? Array.from({ length: Math.round((last - first) / seconds) + 1 }, (_, at) => first + at * seconds) : [];
}

export function ttft(target, data, quantile) {
  const times = slotTimes(["text", "multimodal"].flatMap((name) => data.modalities[name].slots), data.slot_seconds);
  const columns = ["text", "multimodal"].map((name) => {
    const found = new Map(data.modalities[name].slots.map((slot) => [slot.start, slot.series.ttft?.[quantile] ?? null]));
    return times.map((time) => found.get(time) ?? null);
  });
  const line = (label) => ({ label, stroke: colour(`${label}-series`), width: 2 });
  draw(target, [times, ...columns], [line("text"), line("multimodal")], { log: true, points: true });
}

// Stages on top of each other. Percentiles do not add up to the percentile of the sum; which part is large is what the picture is for.
export function stacked(target, slots, stages, { quantile, seconds }) {
  const seen = stages.filter((stage) => slots.some((slot) => slot.series[stage]));
  const times = slotTimes(slots, seconds);
  const at = new Map(slots.map((slot) => [slot.start, slot.series]));
  const own = seen.map((stage) => times.map((time) => (at.has(time) ? (at.get(time)[stage]?.[quantile] ?? 0) : null)));
  const sums = [];
  for (const column of own) sums.push(column.map((value, place) => (value === null ? null : value + (sums.at(-1)?.[place] ?? 0))));
  const series = seen.map((stage) => ({ label: stage, stroke: colour(stage), fill: colour(stage), width: 0, paths: uPlot.paths.bars({ size: [0.9, 40] }) }));
  // Drawn from the top down, each over the one before it.
  draw(target, [times, ...sums.toReversed()], series.toReversed(), { shown: own.toReversed(), points: false, pad: seconds / 2 });
}

export function lines(target, times, columns, names) {
  const palette = ["admission", "media_decode", "vision_encode", "llm_prefill", "upstream"];
  const series = names.map((label, index) => ({ label, stroke: colour(palette[index % palette.length]), width: 2 }));
  draw(target, [times, ...columns], series, { format: amount, height: 140 });
}
