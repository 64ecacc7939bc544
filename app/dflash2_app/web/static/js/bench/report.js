// One measurement, whole: advice, verdict, cautions, tables, plots, and what it was made with.
import { api, text as fetchText } from "../api.js";
import { el, fmt, save } from "../dom.js";
import { toast } from "../dialog.js";
import { acceptancePlot, hasAcceptance, phasePlot, settingTables, speedPlot, widthName } from "./tables.js";

const MOST_DIFFERENCES = 5;

/**
 * @param {{id: string|null, model: string, record: object, began: string, seconds: number}} run `id` null: it is not kept
 */
export function report(run) {
  const { record } = run;
  const settings = record.settings;
  return el("div.stack", {},
    el("div.row", {}, el("h2.grow.wrap", { tabindex: "-1" }, `${run.model}: ${subject(record)}`), downloads(run)),
    record.complete ? null : el("p.warning", { role: "status" },
      `Unfinished: ${record.requests} of ${record.requests_planned} requests were measured.`),
    advice(run),
    verdict(record),
    cautions(record),
    el("section.panel.stack", { "aria-label": "Results" }, settingTables(settings)),
    plots(settings),
    method(run));
}

export function subject(record) {
  const drafter = record.drafter ? `drafter ${shortName(record.drafter)}, block size ${record.block_size}` : "no drafter";
  return `${record.prompts} ${record.prompts === 1 ? "prompt" : "prompts"} of ${record.set}, ${drafter}`;
}

function shortName(name) {
  return name.length > 40 ? `…${name.slice(-39)}` : name;
}

export function plots(settings) {
  if (!settings.length) return null;
  return el("section.panel.plots", { "aria-label": "Plots" },
    speedPlot(settings),
    settings.filter(hasAcceptance).map(acceptancePlot),
    settings.map(phasePlot),
    settings.some((setting) => setting.arms.some((arm) => Object.keys(arm.milliseconds).length))
      ? el("p.dim", {}, "Phases are medians of separate runs that wait after each phase (host gap: of runs that do not); "
        + "they do not add up to a round of the runs above.") : null);
}

function advice(run) {
  const found = run.record.recommendation;
  if (!found) return null;
  const head = found.block_size ? `Block size ${found.block_size}` : found.speedup === null ? "No advice" : "Plain decoding";
  const box = el("section.panel.advice", { "aria-label": "Advice" },
    el("h3", {}, `Advice: ${head}`), el("p.wrap", {}, found.reason));
  if (found.block_size && run.id) box.append(applyButton(run, found.block_size));
  return box;
}

function applyButton(run, width) {
  const told = el("span.wrap", { role: "status" });
  const button = el("button.primary", { type: "button", onclick: async () => {
    button.disabled = true;
    told.className = "wrap";
    try {
      told.textContent = (await api(`/api/bench/runs/${run.id}/apply`, { body: {} })).told;
      told.classList.add("success");
    } catch (error) {
      told.textContent = error.message;
      told.classList.add("error");
      button.disabled = false;
    }
  } }, `Apply: Runtime block size ${width}`);
  return el("div.row", {}, button, told);
}

function verdict(record) {
  const texts = record.settings.flatMap((setting) => setting.arms.filter((arm) => arm.texts).map((arm) => [arm, arm.texts]));
  if (!texts.length) return null;
  const sum = (key) => texts.reduce((total, [, found]) => total + found[key], 0);
  const compared = sum("compared"), identical = sum("identical");
  if (compared === identical) {
    return el("p.success", {}, el("strong", {}, "Identical: "), `all ${compared} drafted replies that had to equal plain decoding's do.`);
  }
  const differences = texts.flatMap(([arm, found]) => found.differences.map((one) => [arm, one]));
  return el("div.error", {},
    el("p", {}, el("strong", {}, "Different: "), `${identical} of ${compared} drafted replies equal plain decoding's.`),
    el("ul", {}, differences.slice(0, MOST_DIFFERENCES).map(([arm, one]) => el("li", {},
      `width ${widthName(arm)}, prompt ${one.prompt}: from token ${one.index} on`
      + (one.logit_gap === null ? "" : `, logit gap ${Number(one.logit_gap.toPrecision(4))}`)))),
    differences.length > MOST_DIFFERENCES ? el("p", {}, `and ${differences.length - MOST_DIFFERENCES} more (the JSON lists them)`) : null);
}

function cautions(record) {
  const lines = [record.busy, record.recommendation?.caution].filter(Boolean);
  return [
    lines.map((text) => el("p.warning.wrap", {}, el("strong", {}, "Caution: "), text)),
    record.notices.length ? el("ul.note.notices", { "aria-label": "Notes" }, record.notices.map((text) => el("li.wrap", {}, text))) : null,
  ];
}

function downloads(run) {
  const name = `bench-${(run.id ?? run.model).replace(/[^\w.-]+/g, "-")}`;
  const csv = el("button.small", { type: "button", onclick: async () => {
    try {
      save(`${name}.csv`, await fetchText(`/api/bench/runs/${run.id}/csv`), "text/csv");
    } catch (error) {
      toast(error.message);
    }
  } }, "CSV");
  return el("div.row", { role: "group", "aria-label": "Download" },
    el("button.small", { type: "button", onclick: () => save(`${name}.json`, `${JSON.stringify(run.record, null, 2)}\n`) }, "JSON"),
    run.id ? csv : null);
}

function method(run) {
  const { record } = run, drawn = Object.entries(record.sampling).filter(([, value]) => value !== null && value !== 0 && value !== 1);
  const rows = [
    ["Measured", `${new Date(run.began).toLocaleString()}, in ${fmt.seconds(run.seconds)}`],
    ["Model", record.model], ["Drafter", record.drafter ?? "none"],
    ["Prompts", `${record.prompts} of ${record.set}${record.revision ? `, revision ${record.revision.slice(0, 12)}` : ""}`],
    ["Replies", `up to ${record.max_tokens} tokens, ${record.repeats} repeat${record.repeats === 1 ? "" : "s"}, seed ${record.seed}`],
    ["Preset", record.preset ?? "none"],
    ["Sampling", drawn.length ? drawn.map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") : "neutral"],
    ["Chat template", record.chat_template ? JSON.stringify(record.chat_template_args ?? {}) : "not used"],
    ["Machine", [record.machine.chip, record.machine.system, `MLX on ${record.machine.backend}`].filter(Boolean).join(", ")],
    ["Versions", Object.entries(record.versions).filter(([, value]) => value).map(([key, value]) => `${key} ${value}`).join(", ")],
  ];
  return el("details.panel", {}, el("summary", {}, "How it was measured"),
    el("dl.facts", {}, rows.map(([name, text]) => [el("dt", {}, name), el("dd.wrap", {}, text)])));
}
