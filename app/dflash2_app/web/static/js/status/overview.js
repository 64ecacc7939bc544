// What the server does now: its state, its models, its sums and its memory.
import { el, fmt } from "../dom.js";

/** Tiles, models and sums of GET /api/status. */
export function overview(status) {
  return [
    el("div.columns", {}, server(status), memory(status.memory)), models(status), totals(status.totals),
  ];
}

function tiles(pairs) {
  return el("dl.tiles", {}, pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function server(status) {
  const { queue } = status;
  return el("section.panel", { "aria-label": "Server" },
    el("h2", {}, "Server"),
    queue.stuck_seconds === null ? null : el("p.error", {}, `A reply has stood still for ${Math.round(queue.stuck_seconds)} s.`),
    tiles([
      ["Version", status.version], ["Up for", duration(status.uptime_seconds)],
      ["Running", `${queue.running} of ${queue.most_running}`], ["Waiting", `${queue.waiting} of ${queue.most_waiting}`],
    ]),
    el("dl.facts", {},
      el("dt", {}, "Listens on"), el("dd.mono.wrap", {}, status.address),
      el("dt", {}, "API key"), el("dd", {}, status.key_required ? "asked of every client" : "not set: only this machine is served")));
}

function models({ models: list, notes: told, left_out: leftOut }) {
  const heads = ["model", "state", "engine", "DFlash", "block size", "context", "weights", "in use"];
  const table = el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of models" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, list.map(modelRow))));
  return el("section.panel", { "aria-label": "Models" },
    el("h2", {}, "Models"),
    told.map((text) => el("p.warning.wrap", {}, text)),
    list.length ? table : el("p.empty", {}, "This server offers no model."),
    Object.entries(leftOut).map(([name, why]) => el("p.dim.wrap", {}, `Not offered: ${name} (${why})`)));
}

function modelRow(model) {
  const state = model.is_loading ? ["accent", "loading"] : model.loaded ? ["good", "loaded"] : ["", "not loaded"];
  const idle = model.idle_seconds === null || model.idle_seconds === undefined ? null : `idle for ${duration(model.idle_seconds)}`;
  const limit = model.ttl_seconds ? `unloaded after ${duration(model.ttl_seconds)}` : null;
  return el("tr", {},
    el("th.wrap", { scope: "row" }, model.id, badges(model), notes(model)),
    el("td", {}, el("span.badge", { class: state[0] }, state[1]), model.problem ? el("div.bad-text.wrap", {}, model.problem) : null),
    el("td.mono", {}, model.effective_engine ?? "–"),
    el("td.wrap", {}, drafting(model)),
    el("td", {}, model.block_size ?? "–"),
    el("td", {}, fmt.count(model.context_length)),
    el("td", {}, fmt.bytes(model.weight_bytes)),
    el("td", {}, model.active_requests ? `${model.active_requests} request${model.active_requests === 1 ? "" : "s"}` : [idle, limit].filter(Boolean).join(", ") || "–"));
}

function badges(model) {
  const names = [["is_default", "default"], ["pinned", "pinned"], ["is_hidden", "hidden"], ["requires_reload", "loads anew at its next request"]];
  return names.filter(([key]) => model[key]).map(([, name]) => [" ", el("span.badge", {}, name)]);
}

function notes(model) {
  return model.notes?.length ? el("ul.reason", {}, model.notes.map((text) => el("li.wrap", {}, text))) : null;
}

/** In the API's words: dflash_requested, dflash_active, dflash_fallback_reason. */
function drafting(model) {
  if (model.dflash_active === null) return model.dflash_requested ? "requested" : "–";
  if (model.dflash_active) return el("span.badge.good", {}, "active");
  return [
    el("span.badge", { class: model.dflash_requested ? "warn" : "" }, model.dflash_requested ? "requested, not active" : "not active"),
    model.dflash_fallback_reason ? el("div.reason", {}, model.dflash_fallback_reason) : null,
  ];
}

function totals(sums) {
  const rows = Object.entries(sums.models);
  const refused = Object.entries(sums.requests_by_status).filter(([code]) => Number(code) >= 400)
    .reduce((total, [, count]) => total + count, 0);
  const heads = ["model", "replies", "prompt tokens", "cached", "generated", "rounds", "tokens per round", "acceptance rate", "tokens/s"];
  const table = el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Sums by model" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((name, at) => el("th", { scope: "col", class: at ? "number" : "" }, name)))),
    el("tbody", {}, rows.map(([name, sum]) => el("tr", {},
      el("th.wrap", { scope: "row" }, name),
      [fmt.count(sum.replies), fmt.count(sum.prompt_tokens), fmt.count(sum.cached_tokens), fmt.count(sum.generated_tokens), fmt.count(sum.rounds),
        sum.drafted_tokens ? fmt.fixed((sum.accepted_tokens + sum.rounds) / sum.rounds, 2) : "–",
        sum.drafted_tokens ? fmt.percent(sum.accepted_tokens / sum.drafted_tokens) : "–",
        sum.decode_seconds > 0 ? fmt.fixed(sum.generated_tokens / sum.decode_seconds) : "–",
      ].map((text) => el("td.number", {}, text)))))));
  return el("section.panel", { "aria-label": "Since the start" },
    el("h2", {}, "Since the start"),
    tiles([["Requests to /v1", fmt.count(sums.requests)], ["Refused or failed", fmt.count(refused)], ["Replies failed half-way", fmt.count(sums.reply_failures)]]),
    rows.length ? [el("p.dim.spaced", {}, "Of replies on every interface; measurements of the bench are not counted."), table]
      : el("p.empty", {}, "No replies yet."));
}

function memory(use) {
  const held = use.active_bytes + use.cache_bytes;
  return el("section.panel", { "aria-label": "Memory" },
    el("h2", {}, "Memory"),
    tiles([["In use by MLX", fmt.bytes(use.active_bytes)], ["Kept for reuse", fmt.bytes(use.cache_bytes)],
      ["Peak of the last reply", fmt.bytes(use.peak_bytes)], ["A model may take", fmt.bytes(use.limit_bytes)],
      ["Process, most so far", fmt.bytes(use.process_peak_bytes)]]),
    use.limit_bytes ? el("progress", { max: String(use.limit_bytes), value: held, "aria-label": `MLX holds ${fmt.bytes(held)} of ${fmt.bytes(use.limit_bytes)}` }) : null);
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}
