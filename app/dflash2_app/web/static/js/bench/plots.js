// Plots of a measurement as SVG: lines over widths or positions, and a round's phases as stacked bars.
// Each has a label that says the same in words, and a legend that does not rely on colour alone.
import { niceMost, short } from "../charts.js";
import { el } from "../dom.js";

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 460, LEFT = 46, RIGHT = 12, TOP = 22, BOTTOM = 36;
const TONES = 6;

function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/**
 * Lines with points; a point may have a bar from `low` to `high`.
 * @param {{name: string, points: {x: number, y: number, low?: number, high?: number}[]}[]} series
 * @param {{title: string, xLabel: string, yLabel: string, xs: number[], xName?: (x: number) => string, yMost?: number}} options
 */
export function linePlot(series, { title, xLabel, yLabel, xs, xName = String, yMost = null, height = 230 }) {
  const drawn = series.filter((one) => one.points.length);
  if (!drawn.length) return el("p.empty", {}, `${title}: not measured`);
  const highest = yMost ?? niceMost(Math.max(...drawn.flatMap((one) => one.points.map((p) => p.high ?? p.y))));
  const step = (WIDTH - LEFT - RIGHT) / Math.max(xs.length, 1);
  const x = (value) => LEFT + (xs.indexOf(value) + 0.5) * step;
  const y = (value) => height - BOTTOM - (value / highest) * (height - TOP - BOTTOM);
  const words = drawn.map((one) => `${one.name}: ${one.points.map((p) => `${xName(p.x)} ${short(p.y)}`).join(", ")}`);
  const chart = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${words.join(". ")}` });
  for (let k = 0; k <= 4; k += 1) {
    const value = (highest * k) / 4;
    chart.append(
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  xs.forEach((value) => chart.append(
    svg("text", { class: "tick", x: x(value), y: height - BOTTOM + 16, "text-anchor": "middle" }, xName(value))));
  chart.append(
    svg("text", { class: "tick", x: 2, y: 11 }, yLabel),
    svg("text", { class: "tick", x: (LEFT + WIDTH - RIGHT) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  drawn.forEach((one, at) => chart.append(line(one, at % TONES, x, y)));
  return el("figure.plotted", {}, el("figcaption", {}, title), chart, legend(drawn.map((one) => one.name)));
}

function line(one, tone, x, y) {
  const group = svg("g", { class: `tone-${tone}` });
  const points = one.points.map((p) => `${x(p.x).toFixed(1)},${y(p.y).toFixed(1)}`).join(" ");
  group.append(svg("polyline", { points }));
  for (const p of one.points) {
    if (p.high !== undefined && p.high > p.low) {
      group.append(svg("line", { class: "spread", x1: x(p.x), x2: x(p.x), y1: y(p.low), y2: y(p.high) }));
    }
    group.append(mark(tone, x(p.x), y(p.y)));
  }
  return group;
}

/** Another shape for every tone, so that lines can be told apart without their colours. */
function mark(tone, x, y) {
  const shapes = [
    () => svg("circle", { class: "mark", cx: x, cy: y, r: 4 }),
    () => svg("rect", { class: "mark", x: x - 3.5, y: y - 3.5, width: 7, height: 7 }),
    () => svg("path", { class: "mark", d: `M${x} ${y - 5}L${x + 5} ${y + 4}L${x - 5} ${y + 4}Z` }),
    () => svg("path", { class: "mark", d: `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z` }),
    () => svg("path", { class: "mark", d: `M${x} ${y + 5}L${x + 5} ${y - 4}L${x - 5} ${y - 4}Z` }),
    () => svg("circle", { class: "mark hollow", cx: x, cy: y, r: 4 }),
  ];
  return shapes[tone]();
}

function legend(names) {
  return el("ul.legend", { "aria-hidden": "true" }, names.map((name, at) => {
    const tone = at % TONES;
    const sample = svg("svg", { viewBox: "0 0 26 12", width: 26, height: 12 });
    const group = svg("g", { class: `tone-${tone}` });
    group.append(svg("polyline", { points: "1,6 25,6" }), mark(tone, 13, 6));
    sample.append(group);
    return el("li", {}, sample, name);
  }));
}

/**
 * One horizontal bar per row, made of parts.
 * @param {{label: string, parts: {name: string, value: number}[]}[]} rows
 * @param {{title: string, unit: string, names: string[]}} options all parts, in their order
 */
export function stackedBars(rows, { title, unit, names }) {
  if (!rows.length) return el("p.empty", {}, `${title}: not measured`);
  const sum = (row) => row.parts.reduce((total, part) => total + part.value, 0);
  const highest = Math.max(...rows.map(sum), 1e-9);
  const tall = 30, label = 52, height = rows.length * tall + 4;
  const words = rows.map((row) => `${row.label}: ${row.parts.map((p) => `${p.name} ${short(p.value)} ${unit}`).join(", ")}`);
  const chart = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${words.join(". ")}` });
  rows.forEach((row, at) => {
    const top = at * tall + 4;
    let from = label;
    chart.append(svg("text", { x: label - 8, y: top + 16, "text-anchor": "end" }, row.label));
    for (const part of row.parts) {
      const wide = (part.value / highest) * (WIDTH - label - 70);
      const tone = names.indexOf(part.name) % TONES;
      const bar = svg("rect", { class: `fill-${tone}`, x: from, y: top, width: Math.max(wide, 0), height: tall - 8 });
      bar.append(svg("title", {}, `${part.name} ${short(part.value)} ${unit}`));
      chart.append(bar);
      from += wide;
    }
    chart.append(svg("text", { class: "tick", x: from + 6, y: top + 16 }, `${short(sum(row))} ${unit}`));
  });
  const marks = el("ul.legend", { "aria-hidden": "true" }, names.map((name, at) => {
    const sample = svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12 });
    sample.append(svg("rect", { class: `fill-${at % TONES}`, x: 0, y: 0, width: 12, height: 12 }));
    return el("li", {}, sample, name);
  }));
  return el("figure.plotted", {}, el("figcaption", {}, title), chart, marks);
}
