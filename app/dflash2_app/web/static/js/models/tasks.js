// The queue of downloads: one comes, the others wait; what was stopped goes on where it stood.
import { api } from "../api.js";
import { el, fill, fmt } from "../dom.js";
import { action, badge, duration } from "./words.js";

const STATES = { pending: "", downloading: "accent", completed: "good", failed: "bad", cancelled: "warn" };

export function taskList({ onError }) {
  const list = el("ul.model-list", { "aria-label": "Downloads" });
  const clear = action("Remove completed", () => api("/api/downloads/clear", { body: {} }), { onError });
  const node = el("section.stack", { "aria-label": "Downloads", hidden: true }, el("div.row", {}, el("h2.grow", {}, "Downloads"), clear), list);
  const rows = new Map();
  return {
    node,
    show(tasks) {
      node.hidden = !tasks.length;
      clear.hidden = !tasks.some((task) => task.state === "completed");
      for (const [id, row] of rows) if (!tasks.some((task) => task.id === id)) { row.node.remove(); rows.delete(id); }
      tasks.forEach((task, at) => {
        if (!rows.has(task.id)) rows.set(task.id, taskRow(task, onError));
        const row = rows.get(task.id);
        if (list.children[at] !== row.node) list.insertBefore(row.node, list.children[at] ?? null);
        row.update(task);
      });
    },
  };
}

function taskRow(first, onError) {
  const head = el("div.row", {});
  const state = el("span", { role: "status" });
  const bar = el("progress", { max: "1", "aria-label": `Progress of ${first.model}` });
  const line = el("p.dim.wrap", {});
  const more = el("div.stack", {});
  const files = el("ul", {});
  const filesBox = el("details", {}, el("summary", {}, "Files"), files);
  const buttons = el("div.row", {});
  const node = el("li.panel.model-card.task", {}, head, bar, line, more, filesBox, buttons);
  const act = (verb) => () => api(`/api/downloads/${first.id}/${verb}`, { body: {} });
  let shown = "";

  function frame(task) {
    fill(head, el("h3.grow.wrap", {}, task.repos.length ? task.repos.join(" and ") : task.model), state);
    fill(state, badge(task.phase === "stopping" ? "stopping" : task.state, STATES[task.state]));
    const named = (label) => ({ onError, "aria-label": `${label} ${task.model}` });
    const going = task.state === "pending" || task.state === "downloading";
    fill(buttons,
      going ? action("Cancel", act("cancel"), { ...named("Cancel"), disabled: task.phase === "stopping" }) : null,
      task.state === "failed" || task.state === "cancelled" ? action("Retry", act("retry"), named("Retry")) : null,
      going ? null : action("Remove from list", act("remove"), named("Remove from list:")));
    fill(more, task.error ? el("p.error", {}, task.error) : null, task.notes.map((note) => el("p.note", {}, note)),
      task.waiting ? el("p.warning", {}, task.waiting) : null,
      task.state === "cancelled" ? el("p.dim", {}, "What has come is kept; Retry goes on from there.") : null);
  }

  return {
    node,
    update(task) {
      const key = JSON.stringify([task.state, task.phase, task.repos, task.error, task.notes, task.waiting]);
      if (key !== shown) { shown = key; frame(task); }
      bar.hidden = task.state === "completed";
      if (task.total_bytes) bar.value = task.progress;
      else if (task.state === "downloading") bar.removeAttribute("value");
      else bar.value = 0;
      line.textContent = words(task);
      filesBox.hidden = !task.files.length;
      fill(files, task.files.map((file) => el("li", {}, el("span", {}, file.name),
        el("span.number", {}, file.done_bytes >= file.size_bytes ? fmt.bytes(file.size_bytes)
          : `${fmt.bytes(file.done_bytes)} of ${fmt.bytes(file.size_bytes)}`))));
    },
  };
}

function words(task) {
  const parts = [];
  if (task.total_bytes) {
    const total = fmt.bytes(task.total_bytes);
    parts.push(task.state === "completed" ? total : `${fmt.bytes(task.done_bytes)} of ${total}`);
  }
  if (task.state === "downloading") {
    if (task.phase) parts.push({ fetching: "", checking: "comparing checksums" }[task.phase] ?? task.phase);
    if (task.bytes_per_second) parts.push(`${fmt.bytes(task.bytes_per_second)}/s`, `${duration(task.seconds_left)} left`);
  }
  if (task.state === "pending") parts.push("waits for its turn");
  if (task.tries > 1) parts.push(`attempt ${task.tries}`);
  return parts.filter(Boolean).join(" · ");
}
