// The server's log: its last lines, followed as it grows, by level.
import { stream } from "../api.js";
import { el, fill, select } from "../dom.js";
import { toast } from "../dialog.js";

const LEVELS = ["debug", "info", "warning", "error"];
const MOST = 1000;

export function logPanel({ signal }) {
  const lines = [];
  let last = 0;
  const box = el("div.log", { tabindex: "0", role: "log", "aria-label": "Log lines", "aria-live": "off" });
  const level = select([["debug", "all"], ["info", "info and above"], ["warning", "warnings and errors"], ["error", "errors"]], "debug",
    { "aria-label": "Level", onchange: () => show() });
  const following = el("input", { type: "checkbox", checked: true, onchange: () => { if (following.checked) bottom(); } });
  const state = el("span.dim", { role: "status" });
  const copy = el("button.small", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(visible().map(asText).join("\n"));
      toast("Log copied");
    } catch {
      toast("The browser does not allow copying here: select the lines instead");
    }
  } }, "Copy");
  const visible = () => lines.filter((line) => LEVELS.indexOf(line.level) >= LEVELS.indexOf(level.value));
  const bottom = () => requestAnimationFrame(() => { box.scrollTop = box.scrollHeight; });
  const show = () => {
    const rows = visible();
    fill(box, rows.length ? rows.map(row) : el("p.empty", {}, lines.length ? "No lines of this level." : "No lines yet."));
    if (following.checked) bottom();
  };
  // Who scrolls up wants to read: new lines no longer move the view.
  const read = () => { following.checked = false; };
  box.addEventListener("wheel", (event) => { if (event.deltaY < 0) read(); }, { passive: true });
  box.addEventListener("touchmove", read, { passive: true });
  box.addEventListener("keydown", ({ key }) => { if (["ArrowUp", "PageUp", "Home"].includes(key)) read(); });
  show();
  follow();
  return el("section.panel.stack", { "aria-label": "Log" },
    el("div.row", {}, el("h2.grow", {}, "Log"), state, level, el("label.check", {}, following, "Follow"), copy),
    box,
    el("p.dim", {}, "The last lines since the start. Prompts, replies and keys are never written here."));

  async function follow() {
    while (!signal.aborted) {
      try {
        await stream(`/api/logs/events?after=${last}`, undefined, { method: "GET", signal, onEvent: (data, event) => {
          if (event !== "lines") return;
          state.textContent = "";
          lines.push(...data.lines);
          lines.splice(0, Math.max(0, lines.length - MOST));
          last = data.last;
          show();
        } });
      } catch (error) {
        if (signal.aborted) return;
        state.textContent = error.message;
        if (error.status >= 400 && error.status < 500) return;
      }
      await new Promise((go) => setTimeout(go, 2000));
    }
  }
}

function time(line) {
  return new Date(line.time * 1000).toLocaleTimeString("en-GB");
}

function asText(line) {
  return `${time(line)} ${line.level.toUpperCase()} ${line.text}`;
}

function row(line) {
  return el("div.line", { class: line.level },
    el("span.when", {}, time(line)), " ", el("span.level", {}, line.level), " ", el("span.text", {}, line.text));
}
