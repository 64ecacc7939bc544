// What this machine is, which kernels run, and, on demand, what passes of a model cost on it.
import { api } from "../api.js";
import { linePlot } from "../bench/plots.js";
import { el, field, fill, fmt, select } from "../dom.js";

const AGAIN_MS = 1000;
const TUNING_MS = 3000;

/** The panels of the machine; they look after themselves. */
export function doctorPanels({ signal }) {
  const machine = el("section.panel", { "aria-label": "Machine" }, el("h2", {}, "Machine"), el("p.dim", {}, "Loading…"));
  const kernels = el("section.panel", { "aria-label": "Kernels" });
  const passes = el("section.panel.stack", { "aria-label": "Passes" });
  const node = el("div.stack", {}, el("div.columns", {}, machine, kernels), passes);
  let timer = 0;
  const look = async () => {
    try {
      const found = await api("/api/doctor", { signal });
      fill(machine, machineFacts(found));
      fill(kernels, kernelTable(found));
      return found;
    } catch (error) {
      if (!signal.aborted) fill(machine, el("h2", {}, "Machine"), el("p.error", { role: "alert" }, error.message));
      return null;
    }
  };
  const watch = async (show) => {
    const found = await look();
    if (!found || signal.aborted) return;
    show(found);
    const { examination } = found;
    clearTimeout(timer);
    if (examination && !["done", "failed"].includes(examination.state)) timer = setTimeout(() => watch(show), AGAIN_MS);
    else if (found.tuning_now.some(underWay)) timer = setTimeout(() => watch(show), TUNING_MS);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  const start = (names) => {
    const [form, show] = examineForm(names, () => watch(show));
    fill(passes, form);
    watch(show);
  };
  return { node, start };
}

function machineFacts(found) {
  const { machine, versions } = found;
  const rows = [
    ["Chip", machine.chip ?? "unknown"], ...gpuFacts(machine.gpu), ["System", `${machine.system}, Python ${machine.python}`],
    ["Memory", `${fmt.bytes(machine.memory_bytes)}, MLX may use ${fmt.bytes(machine.memory_limit_bytes)}`],
    ["MLX", `${machine.backend}, ${machine.device}`], ...blasFacts(machine.blas, found.blas),
    ["Packages", Object.entries(versions).filter(([, value]) => value).map(([name, value]) => `${name} ${value}`).join(", ")],
  ];
  return [
    el("h2", {}, "Machine"),
    el("dl.facts", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd.wrap", {}, value)])),
    found.cannot.map((text) => el("p.note.spaced", {}, `Cannot: ${text}`)),
  ];
}

/** What multiplies matrices on Linux's CPU, and what a block of rows costs with it once that was timed. */
function blasFacts(blas, timed) {
  if (!blas) return [];
  const name = blas.library ? blas.version ?? blas.library : `none of ours (${blas.reason})`;
  const told = timed ? `: ${timed.rows} rows cost ${timed.cost.toFixed(1)} times one row` : "";
  return [["BLAS", name + told]];
}

/** The GPU of an Apple chip, and whether MLX uses its Neural Accelerators. */
function gpuFacts(gpu) {
  if (!gpu) return [];
  const facts = [`generation ${gpu.generation}`, gpu.cores ? `${gpu.cores} cores` : null, gpu.emulates_bfloat16 ? "bfloat16 is emulated" : null];
  return [
    ["GPU", facts.filter(Boolean).join(", ")],
    ["Neural Accelerators", `${gpu.neural_accelerators ? "yes" : "no"} (${gpu.neural_reason})`],
  ];
}

function kernelTable(found) {
  return [
    el("h2", {}, "Kernels"),
    el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of kernels" }, el("table", {},
      el("thead", {}, el("tr", {}, ["kernel", "wanted", "runs as", "tested here", "why"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, found.kernels.map((kernel) => el("tr", {},
        el("th.mono", { scope: "row" }, kernel.name), el("td", {}, kernel.wanted),
        el("td", {}, el("span.badge", { class: kernel.runs === "metal" ? "good" : "" }, kernel.runs === "metal" ? "Metal" : "MLX twin")),
        el("td", {}, kernel.tested ? "yes" : "no"), el("td.wrap", {}, kernel.reason ?? "–")))))),
    ...tuned(found.tuning, found.tuning_now),
  ];
}

const underWay = ({ state }) => state === "waiting" || state === "running";

/** What goes on in the background, for one pair. */
function tuningLine({ pair, state, done, total, what, problem }) {
  if (state === "waiting") return `${pair}: is tuned once nobody asks for anything`;
  if (state === "running") return `${pair}: is tuned while nobody asks for anything, ${done ?? 0} of ${total ?? "?"}${what ? ` · ${what}` : ""}`;
  return { done: null, stopped: `${pair}: tuning was stopped`, failed: `${pair}: tuning failed: ${problem}` }[state];
}

/** What races and timed passes found on this machine, newest first, in the words of `doctor`; and what goes on. */
function tuned({ records, notes }, now) {
  const line = (record) => [
    [record.target, record.drafter].filter(Boolean).join(" + "), record.at,
    !record.raced ? "costs of passes only"
      : record.races ? `${record.won} of ${record.races} races won by our kernels` : "no races",
    record.current ? null : "of another chip or version: not used",
  ].filter(Boolean).join(" · ");
  return [
    el("h3", {}, "Tuned"),
    records.length ? el("ul", {}, records.map((record) => el("li.wrap", {}, line(record))))
      : el("p.dim", {}, "Nothing yet: kernels run by default, costs of passes are computed or measured when needed."),
    [...now.map(tuningLine).filter(Boolean), ...notes].map((text) => el("p.note", {}, text)),
  ];
}

function examineForm(names, onStart) {
  const model = field("Model", select(names, names[0]), { hint: "Is loaded first if need be" });
  const rows = field("Rows", el("input", { type: "number", min: 2, max: 16, value: 16 }), { hint: "Passes of 1 to so many rows" });
  const problem = el("p.error", { role: "alert", hidden: true });
  const button = el("button", { type: "submit" }, "Measure");
  const shown = el("div.stack", { tabindex: "-1" }), said = el("p.unseen", { role: "status" });
  let asking = false;
  const form = el("form.row.examine", { novalidate: true, onsubmit: async (event) => {
    event.preventDefault();
    problem.hidden = true;
    if (asking) return;
    asking = true;
    try {
      await api("/api/doctor", { body: { model: model.input.value, rows: Number(rows.input.value) } });
      onStart();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      asking = false;
    }
  } }, model.node, rows.node, button);
  const show = ({ examination }) => {
    const runs = examination && !["done", "failed"].includes(examination.state);
    const held = document.activeElement === button;
    button.disabled = Boolean(runs) || !names.length;
    if (held && runs) shown.focus(); // a button that is switched off loses the focus
    fill(shown, examination ? result(examination) : null);
    const words = runs ? examination.stage : examination ? `Measuring ${examination.model} has ${examination.state === "done" ? "ended" : "failed"}.` : "";
    if (said.textContent !== words) said.textContent = words; // the seconds beside it are not for the ear
  };
  const node = [
    el("h2", {}, "What passes cost here"),
    el("p.dim", {}, "Loads a model and times its passes; other requests wait meanwhile."),
    form, problem, said, shown,
  ];
  return [node, show];
}

function result(examination) {
  if (examination.state === "failed") return el("p.error", {}, `${examination.model}: ${examination.problem}`);
  if (examination.state !== "done") return [el("p", {}, `${examination.model}: ${examination.stage} (${fmt.seconds(examination.seconds)})`), el("progress", { "aria-label": "Measuring" })];
  const { found } = examination, { pair } = found;
  const rows = Object.keys(pair.verify_ms).map(Number), gains = new Map(pair.gains.map((gain) => [gain.block_size, gain]));
  const advice = !pair.gains.length ? "Plain decoding: there is no drafter."
    : pair.recommended_block_size === null ? "Plain decoding: no block size is faster on this machine."
      : `Block size ${pair.recommended_block_size}: ${pair.expected_speedup.toFixed(2)}× plain decoding is expected on text like the sample.`;
  return [
    el("p.wrap", {}, el("strong", {}, examination.model), ` · ${pair.family}, ${pair.quantization ?? "not quantized"}`,
      pair.acceptance_length === null ? "" : ` · sample's acceptance length ${pair.acceptance_length.toFixed(2)}`,
      ` · memory bandwidth ${(found.memory_bandwidth_bytes_per_s / 1e9).toFixed(1)} GB/s`),
    found.busy ? el("p.warning.wrap", {}, `Caution: ${found.busy}`) : null,
    pair.note ? el("p.note.wrap", {}, pair.note) : null,
    el("p", {}, el("strong", {}, "Advice: "), advice),
    linePlot([
      { name: "verify", points: rows.map((x) => ({ x, y: pair.verify_ms[x] })) },
      { name: "draft", points: Object.entries(pair.draft_ms).map(([x, y]) => ({ x: Number(x), y })) },
    ], { title: "Time of a pass by its rows", xLabel: "rows", yLabel: "ms", xs: rows }),
    el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Passes by rows" }, el("table.arms", {},
      el("thead", {}, el("tr", {}, ["rows", "verify, ms", "of 1 row", "draft, ms", "tokens per round", "speed"].map((name) => el("th.number", { scope: "col" }, name)))),
      el("tbody", {}, rows.map((row) => passRow(row, pair, gains.get(row)))))),
    found.kernel_times.length ? el("ul", {}, found.kernel_times.map((time) => el("li", {}, `${time.name}: ${time.kernel_ms.toFixed(3)} ms, its twin ${time.twin_ms.toFixed(3)} ms`))) : null,
  ];
}

function passRow(row, pair, gain) {
  const verify = pair.verify_ms[row];
  const cells = [verify.toFixed(2), `${(verify / pair.verify_ms[1]).toFixed(2)}×`, gain ? pair.draft_ms[row].toFixed(2) : "–",
    gain ? gain.tokens_per_round.toFixed(2) : "–", gain ? `${gain.speedup.toFixed(2)}×` : "–"];
  return el("tr", { class: row === pair.recommended_block_size ? "best" : "" },
    el("th.number", { scope: "row" }, row), cells.map((text) => el("td.number", {}, text)));
}
