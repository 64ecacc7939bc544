// Measurements that are kept: opening, comparing, deleting.
import { api } from "../api.js";
import { el, fill, fmt } from "../dom.js";
import { confirm, toast } from "../dialog.js";
import { times } from "./tables.js";

/** The list of kept measurements, and `refresh` to read it anew. */
export function keptRuns({ signal }) {
  const body = el("div", {}, el("p.dim", {}, "Loading…"));
  const heading = el("h2.grow", { tabindex: "-1" }, "Kept measurements");
  const chosen = new Set();
  const compare = el("button", { type: "button", disabled: true, onclick: () => {
    location.hash = `#/bench/compare/${[...chosen].join("/")}`;
  } }, "Compare two");
  const choose = (id, on) => {
    if (on) chosen.add(id);
    else chosen.delete(id);
    compare.disabled = chosen.size !== 2;
  };
  const refresh = async () => {
    let told;
    try {
      told = await api("/api/bench/runs", { signal });
    } catch (error) {
      if (!signal.aborted) fill(body, el("p.error", { role: "alert" }, error.message));
      return;
    }
    for (const id of [...chosen]) if (!told.runs.some((run) => run.id === id)) chosen.delete(id);
    compare.disabled = chosen.size !== 2;
    fill(body,
      told.problems.map((text) => el("p.warning.wrap", {}, text)),
      told.runs.length ? table(told.runs, chosen, choose, refresh, heading)
        : el("p.empty", {}, `No measurements yet. The last ${told.most} are kept here.`));
  };
  refresh();
  const node = el("section.panel.stack", { "aria-label": "Kept measurements" },
    el("div.row", {}, heading, compare), body);
  return { node, refresh };
}

function table(runs, chosen, choose, refresh, heading) {
  const heads = ["", "when", "model", "prompts", "advice", "speed-up", ""];
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of kept measurements" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((name, at) => el("th", { scope: "col", class: at === 5 ? "number" : "" },
      name || el("span.unseen", {}, at ? "Actions" : "Compare"))))),
    el("tbody", {}, runs.map((run) => row(run, chosen, choose, refresh, heading)))));
}

function row(run, chosen, choose, refresh, heading) {
  const when = new Date(run.began).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  const remove = async () => {
    if (!await confirm("Delete this measurement?", `${run.model}, ${when}. This cannot be undone.`, { yes: "Delete", danger: true })) return;
    try {
      await api(`/api/bench/runs/${run.id}`, { method: "DELETE" });
    } catch (error) {
      toast(error.message);
    }
    await refresh();
    if (document.activeElement === document.body) heading.focus(); // the button is gone with its row
  };
  return el("tr", {},
    el("td", {}, el("input", { type: "checkbox", checked: chosen.has(run.id), "aria-label": `Compare ${run.model}, ${when}`,
      onchange: (event) => choose(run.id, event.target.checked) })),
    el("td.wrap", {}, el("a", { href: `#/bench/run/${run.id}` }, when),
      run.complete ? null : el("div", {}, el("span.badge.warn", {}, `unfinished, ${run.requests} of ${run.requests_planned}`))),
    el("td.wrap", {}, run.model),
    el("td.wrap", {}, `${run.prompts} of ${run.set}`, el("div.dim", {}, `${run.repeats}× · T ${run.temperatures.map((t) => t ?? "server").join(", ")} · ${fmt.seconds(run.seconds)}`)),
    el("td", {}, run.block_size ? `block size ${run.block_size}` : run.speedup === null ? "none" : "plain decoding"),
    el("td.number", {}, times(run.speedup)),
    el("td.right", {}, el("button.small.quiet", { type: "button", "aria-label": `Delete ${run.model}, ${when}`, onclick: remove }, "Delete")));
}
