// Questions and short messages. Dialogs are <dialog>, so that Escape, focus and screen readers work.
import { el, field } from "./dom.js";

/** Say something that needs no answer. */
export function toast(text, seconds = 5) {
  const node = el("div.toast", {}, text);
  const place = document.getElementById("toasts");
  // What is outside of an open dialog is dimmed, and no screen reader speaks of it.
  const open = [...document.querySelectorAll("dialog[open]")].at(-1);
  if (open && !open.contains(place)) {
    open.append(place);
    open.addEventListener("close", () => document.body.append(place), { once: true });
  }
  setTimeout(() => place.append(node)); // a live region has to be there before its words
  setTimeout(() => node.remove(), seconds * 1000);
}

/** The line under the header; empty text takes it away. */
export function banner(text) {
  document.getElementById("banner").textContent = text ?? "";
}

/**
 * Open a dialog; resolves to what `close(value)` is given, or null when it is dismissed.
 * @param {string} title
 * @param {(close: (value: any) => void) => Node[]} build
 */
export function dialog(title, build, { wide = false } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const node = el("dialog", { class: wide ? "wide" : "", "aria-label": title });
    const close = (value = null) => { result = value; node.close(); };
    node.append(el("h2", {}, title), ...build(close));
    node.addEventListener("close", () => { node.remove(); resolve(result); });
    document.body.append(node);
    node.showModal();
  });
}

/** Ask yes or no. */
export function confirm(title, text, { yes = "OK", danger = false } = {}) {
  return dialog(title, (close) => [
    el("p.wrap", {}, text),
    el("div.actions", {},
      el("button", { type: "button", onclick: () => close(false) }, "Cancel"),
      el("button", { type: "button", class: danger ? "danger" : "primary", onclick: () => close(true) }, yes)),
  ]).then(Boolean);
}

/** Ask for one line of text; null when dismissed. */
export function prompt(title, label, { value = "", yes = "Save", type = "text", hint = "" } = {}) {
  return dialog(title, (close) => {
    const control = field(label, el("input", { type, value, required: true, autocomplete: "off" }), { hint });
    const form = el("form", { onsubmit: (event) => { event.preventDefault(); close(control.input.value); } },
      control.node,
      el("div.actions", {},
        el("button", { type: "button", onclick: () => close() }, "Cancel"),
        el("button.primary", { type: "submit" }, yes)));
    return [form];
  });
}

let asking = null;
/** Ask for the server's API key, once however many calls want it. */
export function askForKey(wrong) {
  asking ??= prompt("API key", "Key", {
    type: "password", yes: "Go on", hint: wrong ? "The key was wrong." : "This server asks for its API key.",
  }).finally(() => { asking = null; });
  return asking;
}
