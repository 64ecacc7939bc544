// What came of a race: the speed-up and the verdict in large words, bars, charts, notes.
import { barChart, lineChart } from "../charts.js";
import { el, fill, fmt } from "../dom.js";
import { MODES, TITLES, curveOf, words } from "./record.js";

/** Fill a node with the outcome of a finished race. */
export function showOutcome(node, record, actions) {
  const { plain, dflash2 } = record.lanes, said = words(record);
  fill(node,
    el("div.outcome-top", {},
      el("div.outcome-speed", { dataset: { tone: said.tone } },
        el("strong", {}, said.speed), el("span", {}, said.sentence)),
      el("p.outcome-verdict", { class: { good: "success", warn: "warning", bad: "error" }[said.verdictTone] }, said.verdict)),
    said.warnings.map((text) => el("p.warning", {}, text)),
    el("div.speeds", {}, MODES.map((mode) => speedBar(mode, record))),
    el("p.dim", {}, "Measured one after the other on the same loaded model, so that neither slows the other. The speed-up compares decoding; reading the prompt is not in it."),
    el("div.columns", {},
      el("figure", {}, el("figcaption", {}, "Accepted, by position in the block, in %"),
        barChart(positions(dflash2.stats), { title: "Share accepted by position, in percent", most: 1 }),
        el("p.dim", {}, "How often a draft was accepted among the blocks that accepted all before it.")),
      el("figure", {}, el("figcaption", {}, "Tokens over time"),
        lineChart([{ name: TITLES.dflash2, points: [[0, 0], ...curveOf(dflash2)] }, { name: TITLES.plain, points: [[0, 0], ...curveOf(plain)] }],
          { title: "Tokens over time", xLabel: "seconds since the first token", yLabel: "tokens" }),
        el("ul.legend", {}, el("li", {}, el("span.stroke.one", {}), TITLES.dflash2), el("li", {}, el("span.stroke.two", {}), TITLES.plain)))),
    figures(record),
    record.verdict.notes.length > 0 && el("div", {}, el("h3", {}, "Notes"), el("ul", {}, record.verdict.notes.map((note) => el("li.wrap", {}, note)))),
    actions);
}

function positions(stats) {
  const shares = stats.acceptance_by_position ?? [];
  if (!shares.length) return [{ label: "–", value: null, text: "–" }];
  return shares.map((share, n) => ({ label: String(n + 1), value: share, text: share === null ? "–" : String(Math.round(100 * share)) }));
}

function speedBar(mode, record) {
  const rates = MODES.map((one) => record.lanes[one].stats.tokens_per_second ?? 0);
  const rate = record.lanes[mode].stats.tokens_per_second;
  const bar = el("div", { "aria-hidden": "true" });
  bar.style.width = `${(100 * (rate ?? 0)) / Math.max(...rates, 1e-9)}%`;
  return el("div.speed", { dataset: { lane: mode } }, el("span", {}, TITLES[mode]), el("div.speed-bar", {}, bar),
    el("strong.number", {}, `${fmt.fixed(rate)} tokens/s`));
}

function figures(record) {
  const { stats } = record.lanes.dflash2, plain = record.lanes.plain.stats, { run } = record;
  const rows = [
    ["Decoding", fmt.seconds(plain.decode_s), fmt.seconds(stats.decode_s)],
    ["Reading the prompt", fmt.seconds(plain.prefill_s), fmt.seconds(stats.prefill_s)],
    ["Tokens", fmt.count(plain.generated_tokens), fmt.count(stats.generated_tokens)],
    ["Passes of the target", fmt.count(plain.rounds), fmt.count(stats.rounds)],
    ["Tokens per pass", "1.00", fmt.fixed(stats.acceptance_length, 2)],
    ["Drafts accepted", "–", stats.drafted_tokens ? `${fmt.count(stats.accepted_tokens)} of ${fmt.count(stats.drafted_tokens)}` : "–"],
    ["Peak memory", fmt.bytes(plain.peak_memory_bytes), fmt.bytes(stats.peak_memory_bytes)],
  ];
  const machine = run.machine ?? {};
  return el("details", {}, el("summary", {}, "All figures"),
    el("div.scroll", {}, el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), MODES.map((mode) => el("th.number", { scope: "col" }, TITLES[mode])))),
      el("tbody", {}, rows.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), cells.map((cell) => el("td.number", {}, cell))))))),
    el("p.dim.wrap", {}, [run.subject, run.program, machine.chip, machine.system, machine.backend && `MLX on ${machine.backend}`].filter(Boolean).join(" · ")));
}
