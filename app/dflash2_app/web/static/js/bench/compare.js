// Two kept measurements side by side, setting by setting and width by width.
import { el, fmt } from "../dom.js";
import { subject } from "./report.js";
import { settingName, times, widthName } from "./tables.js";

/** What both have is compared; what only one has is shown as such. */
export function comparison(first, second) {
  const runs = [first, second];
  const settings = new Map();
  runs.forEach((run, side) => run.record.settings.forEach((setting) => {
    const name = settingName(setting);
    if (!settings.has(name)) settings.set(name, [null, null]);
    settings.get(name)[side] = setting;
  }));
  return el("div.stack", {},
    el("h2", { tabindex: "-1" }, "Two measurements compared"),
    el("div.columns", {}, runs.map((run, side) => el("section.panel", { "aria-label": `Measurement ${"AB"[side]}` },
      el("h3.wrap", {}, `${"AB"[side]}: `, el("a", { href: `#/bench/run/${run.id}` }, run.model)),
      el("p.dim.wrap", {}, `${new Date(run.began).toLocaleString()} · ${subject(run.record)}`),
      el("p.wrap", {}, run.record.recommendation?.reason ?? "No advice.")))),
    differences(first.record, second.record),
    [...settings].map(([name, both]) => el("section.panel.scroll", { tabindex: "0", "aria-label": name }, table(name, both))));
}

const ALIKE = [
  ["model", "models"], ["drafter", "drafters"], ["set", "prompts"], ["prompts", "numbers of prompts"], ["max_tokens", "lengths"],
  ["preset", "presets"], ["repeats", "numbers of repeats"], ["chat_template", "uses of the chat template"], ["seed", "seeds"],
];

/** Say what makes the two hard to compare. */
function differences(a, b) {
  const found = ALIKE.filter(([name]) => a[name] !== b[name]).map(([name, words]) => `different ${words} (${a[name] ?? "none"} | ${b[name] ?? "none"})`);
  if (JSON.stringify(a.sampling) !== JSON.stringify(b.sampling)) found.push("different sampling");
  if (a.machine.chip !== b.machine.chip || a.machine.backend !== b.machine.backend) found.push("different machines");
  if (JSON.stringify(a.versions) !== JSON.stringify(b.versions)) found.push("different package versions");
  if (!a.complete || !b.complete) found.push("one is unfinished");
  if (!found.length) return el("p.note", {}, "Both were asked the same in the same way.");
  return el("div.warning", {}, el("strong", {}, "Not measured alike: "), el("ul", {}, found.map((text) => el("li.wrap", {}, text))));
}

function table(name, both) {
  const arms = both.map((setting) => new Map((setting?.arms ?? []).map((arm) => [arm.width, arm])));
  const widths = [...new Set([...arms[0].keys(), ...arms[1].keys()])].sort((a, b) => a - b);
  const columns = [["tokens/s", (arm) => arm.tokens_per_second, (x) => fmt.fixed(x)], ["speed-up", (arm) => (arm.mode === "plain" ? null : arm.speedup), times],
    ["acceptance", (arm) => arm.acceptance_length, (x) => fmt.fixed(x, 2)], ["prefill", (arm) => arm.prefill_s, fmt.seconds]];
  return el("table.arms", {},
    el("caption", {}, name),
    el("thead", {},
      el("tr", {}, el("th", { scope: "col", rowspan: 2 }, "width"), columns.map(([label]) =>
        el("th.over", { scope: "colgroup", colspan: 3 }, label))),
      el("tr", {}, columns.map(() => ["A", "B", "B / A"].map((side) => el("th.number", { scope: "col" }, side))))),
    el("tbody", {}, widths.map((width) => {
      const [a, b] = arms.map((map) => map.get(width));
      return el("tr", {}, el("th", { scope: "row" }, widthName(a ?? b)), columns.map(([, get, show]) => {
        const [x, y] = [a ? get(a) : null, b ? get(b) : null];
        const ratio = x && y ? `${(y / x).toFixed(2)}×` : "–";
        return [el("td.number", {}, show(x)), el("td.number", {}, show(y)), el("td.number.dim", {}, ratio)];
      }));
    })));
}
