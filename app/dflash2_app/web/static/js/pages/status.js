// The server and the machine: what runs, what it has done, the log, and how to talk to it.
import { api } from "../api.js";
import { el, fill } from "../dom.js";
import { doctorPanels } from "../status/doctor.js";
import { examplesPanel } from "../status/examples.js";
import { logPanel } from "../status/log.js";
import { overview } from "../status/overview.js";

export const title = "Status";
const EVERY_MS = 3000;

export async function mount(root, { signal }) {
  const fault = el("p.error", { role: "alert", hidden: true });
  const now = el("div.stack");
  const doctor = doctorPanels({ signal });
  const rest = el("div.stack");
  root.append(el("h1", {}, title), el("div.stack", {}, fault, now, doctor.node, rest));
  let shown = "", timer = 0, first = true;
  const refresh = async () => {
    try {
      const status = await api("/api/status", { signal });
      fault.hidden = true;
      const text = JSON.stringify({ ...status, uptime_seconds: Math.floor(status.uptime_seconds / 5) });
      if (text !== shown && !busy(now)) {
        shown = text;
        fill(now, overview(status));
      }
      if (first) {
        first = false;
        doctor.start(status.models.map((model) => model.id));
        fill(rest, logPanel({ signal }), examplesPanel(status), await about());
      }
    } catch (error) {
      if (signal.aborted) return;
      fault.textContent = error.message;
      fault.hidden = false;
    }
    if (!signal.aborted) timer = setTimeout(refresh, document.hidden ? 4 * EVERY_MS : EVERY_MS);
  };
  const about = async () => aboutPanel(await api("/api/about", { signal }));
  await refresh();
  return () => clearTimeout(timer);
}

/** Whether somebody is reading with the keyboard, or marks text: replacing it would take that away. */
function busy(node) {
  const marked = getSelection();
  return node.contains(document.activeElement) || (!marked.isCollapsed && node.contains(marked.anchorNode));
}

function aboutPanel(found) {
  return el("section.panel", { "aria-label": "About" },
    el("h2", {}, "About"),
    el("p", {}, `dflash2-mlx ${found.version}, licence ${found.licence}: DFlash 2 speculative decoding on MLX.`),
    found.vendored.length
      ? [el("h3", {}, "Parts of others in these pages"), el("ul", {}, found.vendored.map((part) => el("li", {}, el("a", { href: part.path }, part.name))))]
      : el("p.dim", {}, "These pages contain no parts of others."));
}
