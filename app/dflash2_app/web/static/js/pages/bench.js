// Measuring a model: the form, the measurement under way, its result, and those that are kept.
import { api } from "../api.js";
import { comparison } from "../bench/compare.js";
import { benchForm } from "../bench/form.js";
import { keptRuns } from "../bench/history.js";
import { liveRun } from "../bench/live.js";
import { report } from "../bench/report.js";
import { el, fill } from "../dom.js";

export const title = "Bench";

export async function mount(root, { path, signal }) {
  const place = el("div.stack");
  root.append(el("h1", {}, title), place);
  try {
    const view = path[0] === "run" ? await oneRun(path[1], signal)
      : path[0] === "compare" ? await twoRuns(path[1], path[2], signal) : null;
    if (view) {
      fill(place, el("p", {}, el("a", { href: "#/bench" }, "← All measurements")), view);
      place.querySelector("h2")?.focus();
    } else {
      await workplace(place, signal);
    }
  } catch (error) {
    if (signal.aborted) return;
    fill(place, el("p.error", { role: "alert" }, error.message), el("p", {}, el("a", { href: "#/bench" }, "Back to the bench")));
  }
}

async function oneRun(id, signal) {
  return report(await api(`/api/bench/runs/${encodeURIComponent(id ?? "")}`, { signal }));
}

async function twoRuns(a, b, signal) {
  const runs = await Promise.all([a, b].map((id) => api(`/api/bench/runs/${encodeURIComponent(id ?? "")}`, { signal })));
  return comparison(...runs);
}

async function workplace(place, signal) {
  const about = await api("/api/bench", { signal });
  const result = el("div.stack.result");
  const kept = keptRuns({ signal });
  const form = benchForm(about, async (body) => follow(await api("/api/bench", { body })));
  const follow = (run) => {
    const held = form.node.contains(document.activeElement);
    form.enable(false);
    fill(result, liveRun(run, { signal, onEnd: (end) => { form.enable(true); ended(end); } }));
    if (held) result.querySelector("h2").focus({ preventScroll: true }); // a button that is switched off loses the focus
  };
  const ended = (end) => {
    kept.refresh();
    fill(result, outcome(end));
    if (end.problem) form.fault(new Error(end.problem));
    else result.querySelector("h2")?.focus({ preventScroll: true });
  };
  if (about.models.length) fill(place, el("div.bench", {}, form.node, result), kept.node);
  else fill(place, el("p.empty", {}, "This server offers no model."), kept.node);
  const { current } = about;
  if (current && !["done", "cancelled", "failed"].includes(current.state)) follow(current);
  else fill(result, hint());
}

function hint() {
  return el("div.panel.empty", {},
    el("p", {}, "Decodes the same prompts plainly and with DFlash 2, and tells which block size pays on this machine."),
    el("p", {}, "Results appear here while they are measured."));
}

/** What a measurement left: its report, and why there is none. */
function outcome(end) {
  const lines = [];
  if (end.state === "cancelled") lines.push(el("p.warning", { role: "status" }, end.record ? "Cancelled: this is what was measured until then." : "Cancelled before anything was measured."));
  if (end.state === "failed") lines.push(el("p.error", { role: "alert" }, end.problem));
  if (end.record && !end.kept) lines.push(end.notes.filter((text) => text.includes("could not be kept")).map((text) => el("p.warning.wrap", {}, text)));
  if (!end.record) return lines;
  return [...lines, report({ ...end, id: end.kept ? end.id : null })];
}
