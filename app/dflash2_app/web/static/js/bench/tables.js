// The rows of a measurement, finished or under way: one table per setting, with its plots.
import { el, fmt } from "../dom.js";
import { linePlot, stackedBars } from "./plots.js";

const PHASES = [["draft", "draft"], ["select", "select"], ["verify", "verify"], ["commit", "commit"], ["host_gap", "host gap"]];

/** What all rows of a setting have in common, in words. */
export function settingName(setting) {
  const drawn = setting.temperature === null ? "the server's own sampling" : `temperature ${setting.temperature}`;
  return `${drawn}, depth ${setting.depth}`;
}

export function widthName(arm) {
  return arm.mode === "plain" ? "plain" : arm.width === null ? "server" : String(arm.width);
}

/** Tables of all settings. */
export function settingTables(settings) {
  return settings.map((setting) => {
    const prompt = Math.max(...setting.arms.map((arm) => arm.prompt_tokens), 0);
    const caption = `${settingName(setting)} · prompts of ${prompt.toFixed(0)} tokens on average`;
    return el("div.scroll", { tabindex: "0", role: "region", "aria-label": caption }, armTable(setting, caption));
  });
}

const HEADS = [
  ["width", "Rows per verify; plain decoding has one"],
  ["tokens/s", "One over the mean time per token after the first"],
  ["speed-up", "Plain decoding's mean time per token over this width's"],
  ["by repeat", "The middle half of the speed-up, taken repeat by repeat"],
  ["acceptance", "Tokens a round commits, mean over requests"],
  ["rate", "Accepted drafts over drafts"],
  ["prefill", "Time to the first token"],
  ["peak memory", "MLX's peak while a reply was made, weights included"],
  ["same text", "Drafted replies that equal plain decoding's, of those that have to"],
];

function armTable(setting, caption) {
  const faster = setting.arms.filter((arm) => arm.mode !== "plain" && arm.speedup > 1);
  const best = faster.find((arm) => arm.speedup === Math.max(...faster.map((one) => one.speedup)));
  return el("table.arms", {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, HEADS.map(([name, title], at) =>
      el("th", { scope: "col", class: at ? "number" : "", title }, name)))),
    el("tbody", {}, setting.arms.map((arm) => armRow(arm, arm === best))));
}

function armRow(arm, best) {
  const spread = arm.speedup_by_repeat, texts = arm.texts;
  const different = texts && texts.identical < texts.compared;
  const cells = [
    fmt.fixed(arm.tokens_per_second), times(arm.mode === "plain" ? null : arm.speedup),
    spread ? `${spread.quarter.toFixed(2)}–${spread.three_quarters.toFixed(2)}` : "–",
    fmt.fixed(arm.acceptance_length, 2), fmt.percent(arm.acceptance_rate), fmt.seconds(arm.prefill_s),
    arm.peak_memory_bytes ? fmt.bytes(arm.peak_memory_bytes) : "–",
    texts ? `${texts.identical}/${texts.compared}` : "–",
  ];
  return el("tr", { class: best ? "best" : "" },
    el("th", { scope: "row" }, widthName(arm), best ? el("span.badge.good", {}, "fastest") : null),
    cells.map((text, at) => el("td.number", { class: different && at === cells.length - 1 ? "bad" : "" }, text)));
}

export function times(value) {
  return value === null || value === undefined ? "–" : `${value.toFixed(2)}×`;
}

/** Tokens/s by width, one line per setting; bars reach from the slowest repeat to the fastest. */
export function speedPlot(settings) {
  const xs = [...new Set(settings.flatMap((setting) => setting.arms.map((arm) => arm.width ?? 0)))].sort((a, b) => a - b);
  const series = settings.map((setting) => ({
    name: settingName(setting),
    points: setting.arms.filter((arm) => arm.tokens_per_second !== null).map((arm) => {
      const repeats = arm.tokens_per_second_by_repeat.length ? arm.tokens_per_second_by_repeat : [arm.tokens_per_second];
      return { x: arm.width ?? 0, y: arm.tokens_per_second, low: Math.min(...repeats), high: Math.max(...repeats) };
    }),
  }));
  return linePlot(series, { title: "Speed by width", xLabel: "width (rows per verify)", yLabel: "tokens/s", xs,
    xName: (x) => (x === 1 ? "plain" : x === 0 ? "server" : String(x)) });
}

/** Acceptance by position, one line per width of a setting. */
export function acceptancePlot(setting) {
  const drafted = setting.arms.filter((arm) => arm.acceptance_by_position.length);
  const most = Math.max(...drafted.map((arm) => arm.acceptance_by_position.length), 0);
  const series = drafted.map((arm) => ({
    name: `width ${widthName(arm)}`,
    points: arm.acceptance_by_position.map((share, at) => ({ x: at + 1, y: share })).filter((p) => p.y !== null),
  }));
  return linePlot(series, { title: `Acceptance by position · ${settingName(setting)}`, xLabel: "draft",
    yLabel: "accepted, of rounds that got there", xs: Array.from({ length: most }, (_, at) => at + 1), yMost: 1 });
}

/** Where a round's time goes, one bar per width of a setting. */
export function phasePlot(setting) {
  const rows = setting.arms.filter((arm) => Object.keys(arm.milliseconds).length).map((arm) => ({
    label: widthName(arm),
    parts: PHASES.filter(([key]) => arm.milliseconds[key]).map(([key, name]) => ({ name, value: arm.milliseconds[key].median })),
  }));
  const names = PHASES.map(([, name]) => name).filter((name) => rows.some((row) => row.parts.some((part) => part.name === name)));
  if (!rows.length) return null;
  return stackedBars(rows, { title: `Phases of a round · ${settingName(setting)}`, unit: "ms", names });
}

export function hasAcceptance(setting) {
  return setting.arms.some((arm) => arm.acceptance_by_position.length);
}
