// What to race: prompt, model, options. Fields say what is wrong with them; the server has the last word.
import { el, field, fill, select } from "../dom.js";

const TEXTS = { model: "model", prompt: "prompt", system: "system" };
const NUMBERS = ["max_tokens", "temperature", "seed", "block_size"];

export class RaceForm {
  /**
   * @param {{models: object[], defaults: object, limits: object}} choices of GET /api/race
   * @param {URLSearchParams} query values to begin with
   * @param {(order: object, live: boolean) => void} onStart
   */
  constructor(choices, query, onStart) {
    this.choices = choices;
    const { defaults, limits } = choices;
    const given = (name, fallback = "") => query.get(name) ?? fallback;
    const names = choices.models.map((model) => model.id);
    const model = names.includes(query.get("model")) ? query.get("model") : this.firstModel();
    this.fields = {
      model: field("Model", select(names.map((name) => [name, name]), model, { onchange: () => this.modelChanged() })),
      prompt: field("Prompt", el("textarea", { rows: 3, value: given("prompt"), spellcheck: false, required: true })),
      system: field("System prompt", el("textarea", { rows: 2, value: given("system") })),
      max_tokens: field("Most tokens", number(given("max_tokens", defaults.max_tokens), 1, limits.max_tokens), { hint: `1 to ${limits.max_tokens}` }),
      temperature: field("Temperature", number(given("temperature", defaults.temperature), 0, limits.temperature, "any"), { hint: "0 takes the likeliest token" }),
      seed: field("Seed", number(given("seed", defaults.seed), 0, Number.MAX_SAFE_INTEGER), { hint: "Both lanes draw alike (coupled), so the texts must be equal" }),
      block_size: field("Block size", number(given("block_size"), 2), { hint: "Empty: as configured" }),
      verify_mode: field("Verify mode", select([["", "as configured"], ["dflash", "whole blocks"], ["adaptive", "adaptive"]], given("verify_mode"))),
      thinking: field("Thinking", select([["", "as configured"], ["true", "on"], ["false", "off"]], given("thinking"))),
      show: field("Show", select([["replay", "both together, replayed"], ["live", "one after the other, live"]], given("show", "replay"))),
    };
    this.examples = el("div.row.examples", { role: "group", "aria-label": "Examples" });
    this.modelNote = el("div", { role: "status" });
    this.problem = el("p.error", { role: "alert", hidden: true });
    this.start = el("button.primary", { type: "submit" }, "Race");
    this.node = this.layout();
    this.node.addEventListener("submit", (event) => {
      event.preventDefault();
      this.fault(null);
      onStart(this.order(), this.fields.show.input.value === "live");
    });
    this.fields.prompt.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.node.requestSubmit();
    });
    this.modelChanged();
    if (!given("prompt")) this.fields.prompt.input.value = this.current()?.examples[0]?.prompt ?? "";
  }

  layout() {
    const { model, prompt, system, max_tokens, temperature, seed, block_size, verify_mode, thinking, show } = this.fields;
    return el("form.panel.stack.race-form", { "aria-label": "What to race" },
      prompt.node, this.examples,
      el("details", {}, el("summary", {}, "Options"),
        el("div.options", {}, max_tokens.node, temperature.node, seed.node, block_size.node, verify_mode.node, thinking.node),
        system.node),
      el("div.row.race-start", {}, model.node, show.node, el("div.row", {}, this.start,
        el("span.dim.keys", {}, "Ctrl+Enter"))),
      this.modelNote, this.problem);
  }

  firstModel() {
    const drafting = this.choices.models.find((model) => model.dflash_active ?? model.dflash_requested);
    return (drafting ?? this.choices.models[0])?.id;
  }

  current() {
    return this.choices.models.find((model) => model.id === this.fields.model.input.value);
  }

  modelChanged() {
    const model = this.current();
    fill(this.examples, el("span.dim", {}, "Examples:"), (model?.examples ?? []).map(({ label, prompt }) =>
      el("button.small", { type: "button", title: prompt, onclick: () => { this.fields.prompt.input.value = prompt; this.fields.prompt.input.focus(); } }, label)));
    let note = null;
    if (!model) note = el("p.warning", {}, "This server offers no model.");
    else if (model.problem) note = el("p.warning", {}, `${model.id} cannot be loaded: ${model.problem}`);
    else if (model.dflash_active === false) note = el("p.warning", {}, `DFlash is not active for ${model.id}: ${model.dflash_fallback_reason}`);
    else if (!model.loaded && model.dflash_requested === false) note = el("p.warning", {}, `DFlash is off for ${model.id}: choose a draft model on the Models page.`);
    else if (!model.loaded) note = el("p.dim", {}, `${model.id} will be loaded first.`);
    fill(this.modelNote, note);
  }

  /** The body of POST /api/race. */
  order() {
    const order = {};
    for (const name of Object.keys(TEXTS)) if (this.fields[name].input.value) order[name] = this.fields[name].input.value;
    for (const name of NUMBERS) if (this.fields[name].input.value !== "") order[name] = Number(this.fields[name].input.value);
    if (this.fields.verify_mode.input.value) order.verify_mode = this.fields.verify_mode.input.value;
    if (this.fields.thinking.input.value) order.thinking = this.fields.thinking.input.value === "true";
    return order;
  }

  /** All that is filled in, as the query of an address; what stands there by default is left out. */
  query() {
    const { defaults } = this.choices, query = new URLSearchParams();
    for (const [name, { input }] of Object.entries(this.fields)) {
      const usual = name === "show" ? "replay" : name === "model" ? this.firstModel() : defaults[name] ?? "";
      if (input.value !== String(usual)) query.set(name, input.value);
    }
    return query;
  }

  /** Fill in what a race was made with. */
  fillIn(request) {
    for (const name of [...Object.keys(TEXTS), ...NUMBERS, "verify_mode"]) this.fields[name].input.value = request[name] ?? "";
    this.fields.thinking.input.value = request.thinking === undefined ? "" : String(request.thinking);
    this.modelChanged();
  }

  busy(running) {
    this.start.disabled = running;
  }

  /** Show a refusal at the field it names, or below the form. */
  fault(error) {
    for (const one of Object.values(this.fields)) one.setFault("");
    const own = error && this.fields[error.param];
    if (own) {
      own.setFault(error.message);
      own.node.closest("details")?.setAttribute("open", "");
      own.input.focus();
    }
    this.problem.hidden = !error || Boolean(own);
    this.problem.textContent = error && !own ? error.message : "";
  }
}

function number(value, min, max, step = 1) {
  return el("input", { type: "number", value, min, max, step, inputmode: "decimal" });
}
