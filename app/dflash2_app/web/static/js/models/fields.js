// One setting: its control, where its value comes from, its range, and the way back to the default.
import { el, field, fill, select } from "../dom.js";
import { badge } from "./words.js";

const MODES = { integer: "numeric", number: "decimal" };

/**
 * A field of the settings window.
 * @param {object} key of the schema
 * @param {object} value {text, origin, own, inherited_text, inherited_origin}
 * @returns {{node, changed, current, set, setFault}} `current` is text, or null where the key is not set
 */
export function settingField(key, value, { onChange }) {
  const control = controlOf(key, value);
  return wrapped(key, value, control, onChange);
}

/** Everything around a control: {input, read, write, full?, extra?}; `read` gives text or null. */
export function wrapped(key, value, control, onChange) {
  const base = value.own ? value.text : null;
  let own = base;
  const made = field(key.label, control.input, { hint: key.hint });
  const origin = el("span", {});
  const reset = el("button.quiet.small", { type: "button" }, "Reset");
  const below = el("div.below", {}, origin, reset, el("span.range", {}, rangeOf(key)));
  made.node.classList.add("setting");
  if (control.full) made.node.classList.add("full");
  if (control.extra) made.input.after(control.extra);
  made.node.append(below);
  reset.addEventListener("click", () => { result.set(null); onChange(); control.input.focus(); });
  control.listen((text) => { own = text === "" ? null : text; draw(); onChange(); });

  function draw() {
    const now = own === null ? value.inherited_origin : "model";
    const inherited = value.inherited_text === "" ? "not set" : value.inherited_text;
    fill(origin, badge(result.changed && own !== null ? "model, not saved" : result.changed ? `${now}, not saved` : value.origin,
      value.origin === "model" || result.changed ? "accent" : ""));
    reset.hidden = own === null;
    reset.textContent = `Reset to ${inherited}`.slice(0, 60);
    reset.setAttribute("aria-label", `Reset ${key.label} to ${inherited} (${value.inherited_origin})`);
    made.node.classList.toggle("changed", result.changed);
  }

  const result = {
    node: made.node,
    get current() { return own; },
    get changed() { return own !== base; },
    set(text) {
      own = text === "" ? null : text;
      control.write(own);
      draw();
    },
    setFault(text) { made.setFault(text); },
  };
  control.write(own);
  draw();
  return result;
}

function rangeOf(key) {
  return ["integer", "number", "size"].includes(key.form) ? key.expected : "";
}

function controlOf(key, value) {
  if (key.form === "boolean") return toggle(value);
  if (key.form === "choice") return choice(key, value);
  const placeholder = value.inherited_text || "not set";
  const long = key.form === "object" || key.form === "list";
  const input = long
    ? el("textarea.mono", { rows: 2, placeholder: key.expected.replace(/^a JSON (object|list of names) such as /, ""), spellcheck: "false" })
    : el("input", { type: "text", inputmode: MODES[key.form] ?? "text", placeholder, autocomplete: "off", spellcheck: "false" });
  return {
    input, full: long,
    write(text) { input.value = text ?? ""; },
    listen(told) { input.addEventListener("input", () => told(input.value.trim())); },
  };
}

function toggle(value) {
  const input = el("input", { type: "checkbox" });
  return {
    input,
    write(text) {
      const shown = text ?? value.inherited_text;
      input.checked = shown === "on";
      input.indeterminate = shown === "";
    },
    listen(told) { input.addEventListener("change", () => told(input.checked ? "on" : "off")); },
  };
}

function choice(key, value) {
  const inherited = value.inherited_text === "" ? "not set" : value.inherited_text;
  const input = select([["", `Default (${inherited})`], ...key.choices.map((one) => [String(one), String(one)])], "");
  return {
    input,
    write(text) {
      if (text && ![...input.options].some((option) => option.value === text)) {
        input.append(el("option", { value: text }, `${text} (as another program wrote it)`));
      }
      input.value = text ?? "";
    },
    listen(told) { input.addEventListener("change", () => told(input.value)); },
  };
}
