// A measurement under way: how far it is, its rows so far, and cancelling it.
import { api, stream } from "../api.js";
import { el, fill, fmt } from "../dom.js";
import { toast } from "../dialog.js";
import { settingTables } from "./tables.js";

/**
 * @param {object} run as the server tells of it
 * @param {{signal: AbortSignal, onEnd: (end: object) => void}} options
 */
export function liveRun(run, { signal, onEnd }) {
  const bar = el("progress", { "aria-label": "Requests measured" });
  const stage = el("span.grow.wrap", { role: "status", "aria-live": "polite" });
  const counts = el("span.dim.number");
  const rows = el("div.stack", {}, el("p.empty", {}, "The first rows appear when requests have been measured."));
  const cancel = el("button.danger", { type: "button", onclick: async () => {
    cancel.disabled = true;
    try {
      await api("/api/bench/cancel", { body: {} });
    } catch (error) {
      toast(error.message);
      cancel.disabled = false;
    }
  } }, "Cancel");
  const show = (state) => {
    if (stage.textContent !== state.stage) stage.textContent = state.stage;
    if (state.requests_planned) { bar.max = state.requests_planned; bar.value = state.requests; } else bar.removeAttribute("value");
    counts.textContent = `${state.requests} of ${state.requests_planned || "?"} requests · ${fmt.seconds(state.seconds)}${left(state)}`;
  };
  show(run);
  follow(run.id, signal, show, (settings) => fill(rows, settingTables(settings)), onEnd, stage);
  return el("section.stack", { "aria-label": "Measurement under way" },
    el("div.panel.stack", {},
      el("div.row", {}, el("h2.grow.wrap", { tabindex: "-1" }, `Measuring ${run.model}`), cancel),
      bar, el("div.row", {}, stage, counts),
      el("p.dim", {}, "Cancelling keeps what was measured until then. Other requests run beside it and disturb it: the result says so.")),
    el("div.panel", {}, rows));
}

function left(state) {
  if (!state.requests || state.state !== "measuring") return "";
  const seconds = (state.seconds / state.requests) * (state.requests_planned - state.requests);
  return seconds > 90 ? ` · about ${Math.round(seconds / 60)} min left` : ` · about ${Math.ceil(seconds)} s left`;
}

async function follow(id, signal, onState, onRows, onEnd, stage) {
  let ended = false;
  try {
    await stream(`/api/bench/events?run=${encodeURIComponent(id)}`, undefined, { method: "GET", signal, onEvent: (data, event) => {
      if (event === "state") onState(data);
      else if (event === "rows") onRows(data.settings);
      else if (event === "end") { ended = true; onEnd(data); }
      else if (event === "error") stage.textContent = data.error.message;
    } });
    if (!ended && !signal.aborted) stage.textContent = "The server has ended; what was measured until then is kept.";
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    stage.textContent = error.message;
  }
}
