// The panel of a chat's settings: system text, sampling, thinking, stop texts. What is empty is the model's own.
import { el, field, fill, select } from "../dom.js";

const OWN = "from the model's settings";
// name, label, hint, least, most, step; whole numbers have step 1
const NUMBERS = [
  ["temperature", "Temperature", "0 to 2; 0 always takes the likeliest token", 0, 2, 0.05],
  ["top_p", "Top-p", "0 to 1; draws from the likeliest tokens of this share", 0, 1, 0.01],
  ["top_k", "Top-k", "0 or more; draws from so many tokens, 0 from all", 0, 2 ** 31 - 1, 1],
  ["min_p", "Min-p", "0 to 1; leaves out what is rarer than this share of the likeliest", 0, 1, 0.01],
  ["presence_penalty", "Presence penalty", "-2 to 2; against tokens that occurred", -2, 2, 0.1],
  ["frequency_penalty", "Frequency penalty", "-2 to 2; the more often they occurred", -2, 2, 0.1],
  ["repetition_penalty", "Repetition penalty", "above 0, up to 10; 1 changes nothing", 0.01, 10, 0.05],
  ["seed", "Seed", "0 or more; the same seed draws the same reply", 0, Number.MAX_SAFE_INTEGER, 1],
  ["max_tokens", "Max tokens", "1 or more; a longer reply is cut", 1, 2 ** 31 - 1, 1],
];
const MOST_STOPS = 16;
const SWITCH = "enable_thinking";

export class Controls {
  /** @param {(edit: (chat: object) => void) => void} change applies a change to the chat */
  constructor(change) {
    this.change = change;
    this.about = null;
    this.faults = new Set();
    this.system = field("System prompt", el("textarea", { rows: 3 }), { hint: "Stands in front of the conversation." });
    this.system.input.addEventListener("input", () => change((chat) => { chat.system = this.system.input.value; }));
    this.numbers = NUMBERS.map((row) => this.number(...row));
    this.thinking = field("Thinking", select([["", OWN], ["on", "on"], ["off", "off"]], ""), { hint: " " });
    this.thinking.input.addEventListener("change", () => this.setThinking(this.thinking.input.value));
    this.budget = this.number("thinking_budget", "Thinking budget", "0 or more tokens; empty sets no limit", 0, 2 ** 31 - 1, 1, "server");
    this.stops = field("Stop texts", el("textarea", { rows: 2 }), { hint: `One per line, at most ${MOST_STOPS}; \\n stands for a line end. A reply ends before one.` });
    this.stops.input.addEventListener("input", () => this.setStops());
    this.extra = el("div");
    this.reset = el("button.small", { type: "button", onclick: () => this.clear() }, "Back to the model's settings");
    this.node = el("div.stack", {}, this.system.node, this.thinking.node, this.budget.node,
      el("p.dim", {}, "A field left empty takes the model's own setting, which it shows in grey once the model is loaded."),
      el("div.pairs", {}, this.numbers.map((one) => one.node)), this.stops.node, this.extra, this.reset);
  }

  number(name, label, hint, least, most, step, group = "settings") {
    const control = field(label, el("input", { type: "number", min: least, max: most, step: "any", inputmode: "decimal" }), { hint });
    control.input.addEventListener("input", () => {
      const { value } = control.input;
      const fault = control.input.validity.badInput ? "This is no number." : value === "" ? "" : wrong(Number(value), least, most, step);
      control.setFault(fault);
      this.mark(name, fault);
      if (!fault) this.change((chat) => put(chat[group], name, value === "" ? undefined : Number(value)));
    });
    return Object.assign(control, { name, group });
  }

  mark(name, fault) {
    if (fault) this.faults.add(name);
    else this.faults.delete(name);
  }

  /** The first control that holds what cannot be used; null when all is well. */
  get faulty() {
    const all = [...this.numbers, this.budget, Object.assign(this.stops, { name: "stop" })];
    return all.find((one) => this.faults.has(one.name)) ?? null;
  }

  /** Show a chat's settings. */
  show(chat) {
    this.chat = chat;
    this.faults.clear();
    this.system.input.value = chat.system;
    for (const one of [...this.numbers, this.budget]) {
      one.input.value = chat[one.group][one.name] ?? "";
      one.setFault("");
    }
    this.stops.input.value = (chat.server.stop ?? []).map((text) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")).join("\n");
    this.stops.setFault("");
    this.tell(this.about);
  }

  /** What is known of the model; null before. */
  tell(about) {
    this.about = about;
    const known = about?.loaded ? about : null;
    for (const one of this.numbers) {
      const value = known?.defaults[one.name];
      const fixed = known?.forced_sampling?.includes(one.name) ?? false;
      const standing = value === null || value === undefined ? "" : String(value);
      one.input.placeholder = fixed ? `${standing} (fixed)`.trim() : standing;
      one.input.title = fixed ? "Fixed by the model's settings" : "";
      one.input.disabled = fixed && one.input.value === "";
    }
    this.budget.input.placeholder = "no limit";
    this.stops.input.placeholder = known?.defaults.stop.length ? `${known.defaults.stop.join(" ")}, ${OWN}` : "";
    this.showThinking(known);
    this.showExtra();
  }

  showThinking(known) {
    const name = known?.thinking_switch ?? SWITCH;
    const value = this.chat?.template[name];
    const forced = known?.forced.includes(name);
    const can = !known || (known.thinking_switch && !forced);
    this.thinking.input.value = value === undefined ? "" : value ? "on" : "off";
    this.thinking.input.disabled = !can && value === undefined;
    this.budget.input.disabled = known !== null && !known.thinks && this.chat?.server.thinking_budget === undefined;
    const standing = known?.thinking_default;
    this.thinking.node.querySelector(".hint").textContent = !known ? "Known once the model is loaded."
      : forced ? "This server's settings fix it." : !known.thinks ? "This model does not think."
        : !known.thinking_switch ? "This model's template has no switch for it."
          : standing === null || standing === undefined ? "Else as the model's template has it." : `Else ${standing ? "on" : "off"}, ${OWN}.`;
  }

  /** What a chat from the terminal brings that has no control here is named, not hidden. */
  showExtra() {
    const { settings = {}, template = {} } = this.chat ?? {};
    const plain = new Set(NUMBERS.map(([name]) => name));
    const used = Object.entries(settings).filter(([name]) => !plain.has(name) && !(name === "verify_mode" && settings[name] !== "off"));
    const idle = Object.entries(settings).filter(([name, value]) => name === "verify_mode" && value !== "off");
    const variables = Object.entries(template).filter(([name]) => name !== (this.about?.thinking_switch ?? SWITCH));
    const words = (pairs) => pairs.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ");
    fill(this.extra,
      used.length || variables.length ? el("p.note", {}, `Also set in this chat: ${words([...used, ...variables])}.`) : null,
      idle.length ? el("p.warning", {}, `${words(idle)}: without effect here, the model's settings decide.`) : null);
  }

  setThinking(value) {
    const name = this.about?.thinking_switch ?? SWITCH;
    this.change((chat) => put(chat.template, name, value === "" ? undefined : value === "on"));
  }

  setStops() {
    const stops = this.stops.input.value.split("\n").filter(Boolean).map((text) => text.replace(/\\(n|\\)/g, (_, sign) => (sign === "n" ? "\n" : "\\")));
    const fault = stops.length > MOST_STOPS ? `Got ${stops.length}, expected at most ${MOST_STOPS}.` : stops.some((text) => text.length > 1000) ? "A stop text has at most 1000 characters." : "";
    this.stops.setFault(fault);
    this.mark("stop", fault);
    if (!fault) this.change((chat) => put(chat.server, "stop", stops.length ? stops : undefined));
  }

  /** How many things differ from the model's settings. */
  static changed(chat) {
    return Object.keys(chat.settings).length + Object.keys(chat.template).length + Object.keys(chat.server).length + (chat.system ? 1 : 0);
  }

  clear() {
    this.change((chat) => { chat.settings = {}; chat.template = {}; chat.server = {}; });
    this.show(this.chat);
  }
}

function put(group, name, value) {
  if (value === undefined) delete group[name];
  else group[name] = value;
}

function wrong(value, least, most, step) {
  if (!Number.isFinite(value)) return "This is no number.";
  if (step === 1 && !Number.isInteger(value)) return "Only whole numbers.";
  if (value < least) return `At least ${least}.`;
  return value > most ? `At most ${most}.` : "";
}
