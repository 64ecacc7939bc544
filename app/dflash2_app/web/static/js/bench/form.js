// What is to be measured: the form, its hints, and the body it makes.
import { el, field, select } from "../dom.js";

const KEPT = "dflash2.bench"; // what was chosen last, in this browser
const SAMPLING = [
  ["top_p", "Top-p", "0 to 1; 1 keeps everything"], ["top_k", "Top-k", "0 keeps everything"],
  ["min_p", "Min-p", "0 to 1; 0 keeps everything"], ["presence_penalty", "Presence penalty", "-2 to 2"],
  ["frequency_penalty", "Frequency penalty", "-2 to 2"], ["repetition_penalty", "Repetition penalty", "1 has no effect"],
];
const PRESET_NAMES = { announcement: "announcement: as the published tables", default: "default: the model's own sampling" };

/**
 * @param {object} about what GET /api/bench told
 * @param {(body: object) => Promise<void>} onStart rejects with the server's refusal, whose `param` names the field
 */
export function benchForm(about, onStart) {
  const kept = readKept();
  const controls = makeControls(about, kept);
  const problem = el("p.error", { role: "alert", hidden: true });
  const button = el("button.primary", { type: "submit" }, "Start");
  let starting = false;
  const own = () => controls.set.input.value === "own";
  const show = () => { controls.prompts.node.hidden = !own(); };
  controls.set.input.addEventListener("change", show);
  show();
  const form = el("form.panel.stack.benchform", { "aria-label": "New measurement", novalidate: true, onsubmit: async (event) => {
    event.preventDefault();
    for (const control of Object.values(controls)) control.setFault?.("");
    problem.hidden = true;
    let body;
    try {
      body = readBody(controls, own());
    } catch (fault) {
      point(controls, fault, problem);
      return;
    }
    if (starting) return; // not `disabled`, which would take the focus away
    starting = true;
    try {
      keep(controls);
      await onStart(body);
    } catch (error) {
      point(controls, error, problem);
    } finally {
      starting = false;
    }
  } },
  el("h2", {}, "New measurement"),
  controls.model.node, controls.set.node, controls.prompts.node,
  el("div.pairs", {}, ["samples", "repeats", "max_tokens", "widths", "temperatures", "depths"].map((name) => controls[name].node)),
  controls.preset.node,
  el("details", {}, el("summary", {}, "More"),
    el("div.stack.more", {},
      el("div.pairs", {}, controls.seed.node, SAMPLING.map(([name]) => controls[name].node)),
      controls.lossless_mode.node, controls.chat_template_args.node,
      controls.phases.node, controls.chat_template.node)),
  problem,
  el("div.row", {}, button, el("span.dim", {}, "Widths take turns on one engine, request by request. Close other programs first.")));
  return { node: form, fault: (error) => point(controls, error, problem), enable: (on) => { button.disabled = !on; } };
}

function makeControls(about, kept) {
  const { defaults } = about;
  const text = (name, label, hint, placeholder = "") => field(label,
    el("input", { value: kept[name] ?? "", placeholder, autocomplete: "off", inputmode: "text" }), { hint });
  const whole = (name, label, hint, placeholder = "") => field(label,
    el("input", { value: kept[name] ?? "", placeholder: String(placeholder), autocomplete: "off", inputmode: "numeric" }), { hint });
  const names = about.models.filter((model) => !model.is_hidden).map((model) => [model.id, modelLabel(model)]);
  const chosen = about.models.some((model) => model.id === kept.model) ? kept.model : names[0]?.[0];
  const sets = [...about.sets.map((name) => [name, name === "mini" ? "mini: 60 questions, embedded" : `${name}: from the Hub`]),
    ["own", "own prompts, pasted below"]].sort((a, b) => (a[0] === "mini" ? -1 : b[0] === "mini" ? 1 : 0));
  const presets = [["", "none"], ...about.presets.map((name) => [name, PRESET_NAMES[name] ?? name])];
  const controls = {
    model: field("Model", select(names, chosen)),
    set: field("Prompts", select(sets, kept.set ?? "mini"), { hint: "Sets of the Hub are downloaded once." }),
    prompts: field("Own prompts", el("textarea", { rows: 5, value: kept.prompts ?? "", spellcheck: false }),
      { hint: "One per line, or JSON lines: {\"prompt\": …}, {\"messages\": […]} or {\"turns\": […]}" }),
    samples: whole("samples", "Samples", "Prompts drawn from the set", defaults.samples),
    repeats: whole("repeats", "Repeats", "Times every request is made", defaults.repeats),
    max_tokens: whole("max_tokens", "Max tokens", `Of a reply; ${defaults.preset_max_tokens} with a preset`, defaults.max_tokens),
    widths: text("widths", "Widths", "Rows per verify; 1 is plain decoding. Empty: these, up to the drafter's block size", defaults.widths.join(",")),
    temperatures: text("temperatures", "Temperatures", "0 takes the likeliest token", "0"),
    depths: text("depths", "Depths", "Tokens of context before a prompt", "0"),
    preset: field("Preset", select(presets, kept.preset ?? ""), { hint: "Sampling, thinking and length as published; what is filled in above or below counts more." }),
    seed: whole("seed", "Seed", "Request n is drawn with seed + n", "0"),
    lossless_mode: field("Lossless mode", select([["", "rejection (usual)"], ["rejection", "rejection"], ["coupled", "coupled: same text as plain decoding"]],
      kept.lossless_mode ?? ""), { hint: "Above temperature 0." }),
    chat_template_args: text("chat_template_args", "Chat template variables", "A JSON object, such as {\"enable_thinking\": false}"),
    phases: check("Time the phases of a round, in extra runs", kept.phases ?? true),
    chat_template: check("Use the chat template", kept.chat_template ?? true),
  };
  for (const [name, label, hint] of SAMPLING) controls[name] = text(name, label, hint);
  return controls;
}

function modelLabel(model) {
  if (!model.loaded) return `${model.id} (is loaded first)`;
  return model.dflash_active ? model.id : `${model.id} (DFlash is not active)`;
}

function check(label, checked) {
  const input = el("input", { type: "checkbox", checked });
  return { node: el("label.check", {}, input, label), input };
}

class Fault extends Error {
  constructor(param, message) {
    super(message);
    this.param = param;
  }
}

function readBody(controls, own) {
  const value = (name) => controls[name].input.value.trim();
  const body = { model: value("model"), phases: controls.phases.input.checked };
  if (own) body.prompts = controls.prompts.input.value;
  else body.set = value("set");
  for (const name of ["samples", "repeats", "max_tokens", "seed", "top_k"]) if (value(name)) body[name] = number(name, value(name));
  for (const [name] of SAMPLING) if (name !== "top_k" && value(name)) body[name] = number(name, value(name));
  for (const name of ["widths", "temperatures", "depths"]) {
    if (value(name)) body[name] = value(name).split(/[\s,]+/).filter(Boolean).map((part) => number(name, part));
  }
  for (const name of ["preset", "lossless_mode"]) if (value(name)) body[name] = value(name);
  if (!controls.chat_template.input.checked) body.chat_template = false;
  if (value("chat_template_args")) {
    try {
      body.chat_template_args = JSON.parse(value("chat_template_args"));
    } catch {
      throw new Fault("chat_template_args", `chat_template_args: got ${value("chat_template_args")}, expected a JSON object`);
    }
  }
  return body;
}

function number(name, text) {
  const found = Number(text);
  if (!Number.isFinite(found)) throw new Fault(name, `${name}: got ${text}, expected a number`);
  return found;
}

/** Show a refusal at its field, else above the button. */
function point(controls, error, problem) {
  const name = error.param ?? /^([a-z_]+)[: ]/.exec(error.message)?.[1];
  const control = controls[name];
  if (control?.setFault) {
    control.setFault(error.message);
    const details = control.input.closest("details");
    if (details) details.open = true;
    control.input.focus();
  } else {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

function readKept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function keep(controls) {
  const values = Object.entries(controls).map(([name, { input }]) => [name, input.type === "checkbox" ? input.checked : input.value]);
  localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(values)));
}
