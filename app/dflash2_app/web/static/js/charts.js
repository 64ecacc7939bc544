// Small charts as SVG, each with a text that says the same to those who do not see it.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/**
 * Bars, for instance acceptance by position.
 * @param {{label: string, value: number|null, text?: string}[]} bars
 * @param {{title: string, most?: number, height?: number}} options
 */
export function barChart(bars, { title, most = null, height = 150 }) {
  const width = 420, base = height - 22, top = 18;
  const highest = most ?? Math.max(...bars.map((bar) => bar.value ?? 0), 1e-9);
  const step = width / Math.max(bars.length, 1);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${title}: ${bars.map((bar) => `${bar.label} ${bar.text ?? bar.value ?? "none"}`).join(", ")}` });
  bars.forEach((bar, at) => {
    const tall = Math.max(0, Math.min(1, (bar.value ?? 0) / highest)) * (base - top);
    const middle = at * step + step / 2;
    chart.append(
      svg("rect", { class: "one", x: middle - step * 0.32, y: base - tall, width: step * 0.64, height: tall, rx: 2 }),
      svg("text", { x: middle, y: base - tall - 4, "text-anchor": "middle" }, bar.text ?? String(bar.value ?? "–")),
      svg("text", { class: "tick", x: middle, y: height - 6, "text-anchor": "middle" }, bar.label));
  });
  chart.append(svg("line", { class: "axis", x1: 0, x2: width, y1: base, y2: base }));
  return chart;
}

/**
 * Up to two lines over a shared x, for instance tokens over time.
 * @param {{name: string, points: [number, number][]}[]} series
 */
export function lineChart(series, { title, xLabel, yLabel, height = 200 }) {
  const width = 420, left = 44, right = 10, top = 24, bottom = 34;
  const all = series.flatMap((one) => one.points);
  const xMost = Math.max(...all.map((p) => p[0]), 1e-9), yMost = niceMost(Math.max(...all.map((p) => p[1])));
  const x = (v) => left + (v / xMost) * (width - left - right);
  const y = (v) => height - bottom - (v / yMost) * (height - top - bottom);
  const ends = series.map((one) => `${one.name} ends at ${short(one.points.at(-1)?.[1] ?? 0)}`).join(", ");
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${ends}` });
  for (let k = 0; k <= 4; k += 1) {
    const value = (yMost * k) / 4;
    chart.append(
      svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: left - 5, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  chart.append(
    svg("text", { class: "tick", x: width - right, y: height - 18, "text-anchor": "end" }, short(xMost)),
    svg("text", { class: "tick", x: left, y: height - 18 }, "0"),
    svg("text", { class: "tick", x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
    svg("text", { class: "tick", x: 2, y: 9 }, yLabel));
  series.forEach((one, at) => {
    const points = one.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    chart.append(svg("polyline", { class: at ? "line-two" : "line-one", points }));
  });
  return chart;
}

/** A number for an axis or a label: about three digits, a dash for what is none. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? Number(value.toFixed(1)).toString() : Number(value.toPrecision(3)).toString();
}

/** The end of an axis: a round number that is at least the value, and so are its quarters. */
export function niceMost(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].map((part) => part * power).find((most) => most >= value);
}
