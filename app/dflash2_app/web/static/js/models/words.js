// Words that the manager's parts share: badges, sizes, times.
import { el, fmt } from "../dom.js";

export const badge = (text, kind = "") => el("span", { class: `badge ${kind}`, title: text }, text);

export const KINDS = { target: "target", drafter: "drafter", other: "cannot be used", unknown: "not looked at" };

/** Whether a pair fits, with its numbers: {text, kind, title}; null when nothing is known. */
export function fit(memory) {
  if (!memory || memory.fits === null) return null;
  const need = memory.estimate_bytes?.total;
  const title = `needs ${fmt.bytes(need)} at ${fmt.count(memory.estimate_bytes?.context)} tokens; `
    + `this machine gives ${fmt.bytes(memory.limit_bytes)} to a model`;
  if (memory.fits) return { text: "fits this machine", kind: "good", title };
  if (memory.longest_context) {
    return { text: `fits up to ${fmt.count(memory.longest_context)} tokens`, kind: "warn", title };
  }
  return { text: "does not fit this machine", kind: "bad", title };
}

export function facts(pairs) {
  return el("dl.facts", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value))));
}

/** Seconds in words: "4 min 10 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** A button that runs something, once at a time; its error is given to `onError`. */
export function action(label, work, props = {}) {
  const { onError, ...more } = props;
  const button = el("button.small", { type: "button", ...more }, label);
  let busy = false; // not `disabled`, which would take the focus away
  button.addEventListener("click", async () => {
    if (busy) return;
    busy = true;
    button.setAttribute("aria-busy", "true");
    try {
      await work(button);
    } catch (error) {
      if (error.name !== "AbortError") onError?.(error);
    } finally {
      busy = false;
      button.removeAttribute("aria-busy");
    }
  });
  return button;
}
