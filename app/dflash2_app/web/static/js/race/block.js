// Figure 1 for one block: the candidates of every drafted position, the path through them, and what was accepted.
import { api } from "../api.js";
import { dialog } from "../dialog.js";
import { el, fill, select } from "../dom.js";
import { tokensBefore } from "./record.js";

const VIEWS = [
  ["path_probability", "with the selector, along the path"],
  ["probability", "of the drafter alone"],
];

/** Open the view of one block of a race; arrow keys go to its neighbours. Resolves when it is closed. */
export function showBlock(record, start) {
  const rounds = record.lanes.dflash2.rounds;
  const blocks = rounds.map((round, at) => at).filter((at) => rounds[at].proposal?.length);
  const asked = new AbortController();
  let at = start, view = VIEWS[0][0], found = null;
  const body = el("div.block-view", { "aria-live": "polite" });
  const heading = el("p.block-where", {});
  const before = el("button.small", { type: "button", onclick: () => go(-1) }, "← Earlier");
  const after = el("button.small", { type: "button", onclick: () => go(1) }, "Later →");
  const which = select(VIEWS, view, { onchange: () => { view = which.value; draw(); }, id: "block-probability" });

  function go(step) {
    const next = blocks[blocks.indexOf(at) + step];
    if (next === undefined) return;
    at = next;
    load();
  }

  async function load() {
    const wanted = at, round = rounds[at];
    found = null;
    before.disabled = blocks.indexOf(at) === 0;
    after.disabled = blocks.indexOf(at) === blocks.length - 1;
    heading.textContent = `Block ${at} of ${blocks.at(-1)}: ${round.num_accepted} of ${round.proposal.length} drafts accepted, ${round.committed} ${round.committed === 1 ? "token" : "tokens"} committed`;
    fill(body, el("p.dim", {}, "Computing this block anew from the tokens before it…"));
    try {
      const answer = await api("/api/race/block", {
        body: { ...record.run.request, reply: tokensBefore(record, wanted), width: round.width }, signal: asked.signal,
      });
      if (wanted !== at) return;
      found = answer;
      draw();
    } catch (error) {
      if (error.name !== "AbortError" && wanted === at) fill(body, el("p.error", { role: "alert" }, error.message));
    }
  }

  function draw() {
    if (!found) return;
    fill(body, notes(found, rounds[at]), table(found, view), summary(found));
    requestAnimationFrame(() => drawPath(body));
  }

  const done = dialog("One block, taken apart", (close) => {
    const root = el("div.stack", {},
      el("div.row", {}, before, after, heading),
      body,
      el("div.row", {}, el("label", { for: which.id }, "Bars show the probability"), which),
      el("p.dim", {}, "A column holds the drafter's candidates for one position, likeliest first."),
      el("div.actions", {}, el("button.primary", { type: "button", onclick: () => close() }, "Close")));
    root.addEventListener("keydown", (event) => {
      const step = event.target.matches("select, input") ? 0 : { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
      if (step) { event.preventDefault(); go(step); }
    });
    return [root];
  }, { wide: true });
  const redraw = () => drawPath(body);
  addEventListener("resize", redraw);
  load();
  return done.finally(() => { asked.abort(); removeEventListener("resize", redraw); });
}

function notes(found, round) {
  const differs = found.proposal.findIndex((token, n) => token !== round.proposal[n]);
  return [
    differs >= 0 && el("p.warning", {},
      `Computed anew, the proposal differs from what was run, from position ${differs + 1} on: the model is another one, or a near-tie fell differently.`),
    !found.selector && el("p.note", {}, "This drafter has no selector: every position takes its likeliest candidate."),
  ];
}

/** Text of a token, with blanks and line ends made visible. */
export function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "(nothing)";
}

function table(found, view) {
  const depth = found.rows[0].candidates.length;
  const head = el("tr", {}, el("th", { scope: "col" }, el("span.unseen", {}, "Rank")),
    found.rows.map((row, n) => el("th", { scope: "col", class: row.accepted ? "kept" : "" },
      `${n + 1} `, el("span", { "aria-hidden": "true" }, row.accepted ? "✓" : ""), el("span.unseen", {}, row.accepted ? "accepted" : ""))));
  const lines = [];
  for (let rank = 0; rank < depth; rank += 1) {
    lines.push(el("tr", {}, el("th.dim", { scope: "row" }, rank + 1), found.rows.map((row) => cell(row, rank, view))));
  }
  return el("div.scroll.candidates", { tabindex: 0, role: "region", "aria-label": "Candidates by position" },
    el("div.with-path", {}, el("table", {}, el("thead", {}, head), el("tbody", {}, lines))));
}

function cell(row, rank, view) {
  const candidate = row.candidates[rank];
  const chosen = candidate.id === row.chosen.id, likeliest = candidate.id === row.likeliest.id;
  const target = row.target !== null && candidate.id === row.target.id;
  const marks = [chosen && "on the path", likeliest && "likeliest", target && "the target's token"].filter(Boolean);
  const node = el("td", { class: [chosen && "chosen", chosen && row.accepted && "accepted", likeliest && "likeliest", target && "target"].filter(Boolean).join(" "),
    title: `${JSON.stringify(candidate.text)} · id ${candidate.id} · logit ${candidate.logit.toFixed(3)} · drafter alone ${percent(candidate.probability)} · along the path ${percent(candidate.path_probability)}` },
    el("span.token", {}, visible(candidate.text)),
    el("span.share", {}, percent(candidate[view])),
    marks.length > 0 && el("span.unseen", {}, ` (${marks.join(", ")})`));
  const bar = el("span.bar", { "aria-hidden": "true" });
  bar.style.width = `${Math.max(1, 100 * candidate[view])}%`;
  node.append(bar);
  return node;
}

function percent(x) {
  return x >= 0.0995 ? `${Math.round(100 * x)} %` : x >= 0.001 ? `${(100 * x).toFixed(1)} %` : "< 0.1 %";
}

function summary(found) {
  const line = (label, hint, pick) => el("tr", {}, el("th", { scope: "row", title: hint }, label), found.rows.map(pick));
  const token = (word, classes = "") => el("td", { class: classes }, word === null ? el("span.dim", { title: "The block ended before" }, "–") : visible(word.text));
  const last = found.rows.length === found.num_accepted;
  return [
    el("div.scroll", { tabindex: 0, role: "region", "aria-label": "What became of the block" },
      el("table.summary", {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Position"), found.rows.map((_, n) => el("th", { scope: "col" }, n + 1)))),
        el("tbody", {},
          line("Selector's path", "What was proposed", (row) => token(row.chosen, row.accepted ? "accepted" : "")),
          line("Likeliest alone", "What a drafter without a selector would propose", (row) => token(row.likeliest, row.likeliest.id === row.chosen.id ? "" : "differs")),
          line("Target's own", "What the target says at that position", (row) => token(row.target, row.target !== null && !row.accepted ? "bonus" : ""))))),
    el("p", {}, `After ${JSON.stringify(found.anchor.text)}, the target agreed to ${found.num_accepted} of ${found.rows.length} and added `,
      el("span.bonus.mark", {}, visible(found.bonus.text)), last ? " of its own, as all were accepted." : " where it did not agree."),
    el("ul.legend", {}, el("li", {}, el("span.swatch.chosen", {}), "the path"), el("li", {}, el("span.swatch.accepted", {}), "accepted"),
      el("li", {}, el("span.swatch.likeliest", {}), "likeliest at its position"), el("li", {}, el("span.swatch.target", {}), "the target's own token")),
  ];
}

/** A line through the chosen cells. */
function drawPath(body) {
  const frame = body.querySelector(".with-path");
  if (!frame) return;
  frame.querySelector("svg")?.remove();
  const area = frame.getBoundingClientRect();
  const points = [...frame.querySelectorAll("td.chosen")].map((node) => [node.cellIndex, node.getBoundingClientRect()])
    .sort((a, b) => a[0] - b[0]).map(([, box]) => `${(box.left + box.width / 2 - area.left).toFixed(1)},${(box.top + box.height / 2 - area.top).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  frame.append(svg);
}
