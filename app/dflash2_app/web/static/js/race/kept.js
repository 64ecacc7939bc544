// The list of kept races: show, save, delete, and two of them side by side.
import { lineChart } from "../charts.js";
import { confirm, dialog, toast } from "../dialog.js";
import { el, fill, fmt } from "../dom.js";
import { TITLES, curveOf, dateOf, words } from "./record.js";
import { LIMIT, list, remove } from "./store.js";

const NUMBERS = new Set(["Speed-up", "Acceptance"]);

export class Kept {
  /** @param {{onShow: (record: object) => void, onSave: (record: object) => void}} does */
  constructor({ onShow, onSave }) {
    this.onShow = onShow;
    this.onSave = onSave;
    this.chosen = new Set();
    this.body = el("div", {});
    this.heading = el("h2.grow", { tabindex: "-1" }, "Kept races");
    this.compare = el("button.small", { type: "button", onclick: () => this.showTwo() }, "Compare two");
    this.node = el("section.panel", { "aria-label": "Kept races" },
      el("div.row", {}, this.heading, this.compare), this.body);
  }

  async refresh() {
    try {
      this.entries = await list();
    } catch (error) {
      this.entries = [];
      fill(this.body, el("p.warning", {}, `This browser keeps nothing here (${error?.message ?? error}); save races as JSON instead.`));
      this.compare.disabled = true;
      return;
    }
    for (const id of this.chosen) if (!this.entries.some((entry) => entry.id === id)) this.chosen.delete(id);
    this.draw();
  }

  draw() {
    this.compare.disabled = this.chosen.size !== 2;
    if (!this.entries.length) {
      fill(this.body, el("p.empty", {}, `Finished races are kept here, in this browser: the last ${LIMIT} of them.`));
      return;
    }
    const head = ["", "Prompt", "Model", "Speed-up", "Acceptance", "Texts", "When", ""];
    fill(this.body, el("div.scroll", { tabindex: 0, role: "region", "aria-label": "List of kept races" }, el("table.kept", {},
      el("thead", {}, el("tr", {}, head.map((name, at) => el("th", { scope: "col", class: NUMBERS.has(name) ? "number" : "" }, name || el("span.unseen", {}, at ? "Actions" : "Compare"))))),
      el("tbody", {}, this.entries.map((entry) => this.row(entry))))));
  }

  row({ id, name, record }) {
    const said = words(record);
    const box = el("input", { type: "checkbox", checked: this.chosen.has(id), "aria-label": `Compare: ${name}`,
      onchange: () => {
        if (box.checked) this.chosen.add(id);
        else this.chosen.delete(id);
        if (this.chosen.size > 2) { this.chosen.delete([...this.chosen][0]); this.draw(); }
        this.compare.disabled = this.chosen.size !== 2;
      } });
    return el("tr", {},
      el("td", {}, box),
      el("td.wrap", {}, el("button.quiet.small.link", { type: "button", onclick: () => this.onShow(record) }, name)),
      el("td.wrap", {}, record.run.request.model ?? record.run.target),
      el("td.number", {}, said.speed),
      el("td.number", {}, fmt.fixed(record.lanes.dflash2.stats.acceptance_length, 2)),
      el("td", {}, el("span.badge", { class: record.verdict.identical ? "good" : "bad" }, record.verdict.identical ? "identical" : "different")),
      el("td", {}, dateOf(record)),
      el("td", {}, el("div.row", {},
        el("button.small.quiet", { type: "button", "aria-label": `Save as JSON: ${name}`, onclick: () => this.onSave(record) }, "JSON"),
        el("button.small.quiet", { type: "button", "aria-label": `Delete: ${name}`, onclick: () => this.drop(id, name) }, "Delete"))));
  }

  async drop(id, name) {
    if (!(await confirm("Delete this race?", name, { yes: "Delete", danger: true }))) return;
    await remove(id);
    toast("Deleted.");
    await this.refresh();
    if (document.activeElement === document.body) this.heading.focus(); // the button is gone with its row
  }

  showTwo() {
    const two = [...this.chosen].map((id) => this.entries.find((entry) => entry.id === id)?.record).filter(Boolean);
    if (two.length === 2) compareTwo(two);
  }
}

function compareTwo(two) {
  const stats = (record, mode) => record.lanes[mode].stats;
  const rows = [
    ["Prompt", (record) => record.run.request.prompt],
    ["Setting", (record) => record.run.subject],
    ["When", dateOf],
    ["Speed-up", (record) => words(record).speed],
    ["Plain tokens/s", (record) => fmt.fixed(stats(record, "plain").tokens_per_second)],
    ["DFlash 2 tokens/s", (record) => fmt.fixed(stats(record, "dflash2").tokens_per_second)],
    ["Acceptance length", (record) => fmt.fixed(stats(record, "dflash2").acceptance_length, 2)],
    ["Tokens", (record) => fmt.count(stats(record, "dflash2").generated_tokens)],
    ["Prompt read in", (record) => fmt.seconds(stats(record, "dflash2").prefill_s)],
    ["Texts", (record) => words(record).verdict],
    ["Machine", (record) => record.run.machine?.chip ?? "–"],
  ];
  return dialog("Two races", (close) => [
    el("div.scroll", {}, el("table", {},
      el("thead", {}, el("tr", {}, ["", "A", "B"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map(([name, pick]) => el("tr", {}, el("th", { scope: "row" }, name), two.map((record) => el("td.wrap", {}, pick(record)))))))),
    el("figure", {}, el("figcaption", {}, `${TITLES.dflash2}: tokens over time`),
      lineChart(two.map((record, n) => ({ name: "AB"[n], points: [[0, 0], ...curveOf(record.lanes.dflash2)] })),
        { title: `${TITLES.dflash2}, tokens over time`, xLabel: "seconds since the first token", yLabel: "tokens" }),
      el("ul.legend", {}, el("li", {}, el("span.stroke.one", {}), "A"), el("li", {}, el("span.stroke.two", {}), "B"))),
    el("div.actions", {}, el("button.primary", { type: "button", onclick: () => close() }, "Close")),
  ], { wide: true });
}
