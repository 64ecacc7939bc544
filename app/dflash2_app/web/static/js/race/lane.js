// One lane: its text, block by block, and its figures at a moment of the replay.
import { el, fill, fmt } from "../dom.js";
import { TITLES, figuresAt, kindOf, landedAt } from "./record.js";

export class Lane {
  /**
   * @param {"plain"|"dflash2"} mode
   * @param {(at: number) => void} onBlock a block was chosen; null where blocks cannot be
   */
  constructor(mode, onBlock = null) {
    this.mode = mode;
    this.onBlock = onBlock;
    this.blocks = [];
    this.landed = 0;
    this.state = el("span.badge", {});
    this.cells = {
      speed: el("dd", {}, "–"), tokens: el("dd", {}, "–"), elapsed: el("dd", {}, "–"), acceptance: el("dd", {}, "–"),
    };
    this.prefill = el("p.dim.prefill", {});
    this.bar = el("div.lane-bar", { "aria-hidden": "true" }, el("div", {}));
    this.text = el("div.lane-text", { tabindex: 0, role: "region", dir: "auto", "aria-label": `${TITLES[mode]}: the reply` });
    this.text.addEventListener("keydown", (event) => this.onKey(event));
    this.node = el("section.panel.lane", { "data-lane": mode, "aria-label": TITLES[mode] },
      el("header.row", {}, el("h2", {}, TITLES[mode]), this.state),
      el("dl.tiles", {},
        el("div", {}, el("dt", {}, "Tokens/s"), this.cells.speed),
        el("div", {}, el("dt", {}, "Elapsed"), this.cells.elapsed),
        el("div", {}, el("dt", {}, "Tokens"), this.cells.tokens),
        el("div", {}, el("dt", { title: "Tokens per pass of the target, on average" },
          mode === "plain" ? "Tokens per pass" : "Acceptance length"), this.cells.acceptance)),
      this.bar, this.text, this.prefill);
  }

  /** Begin anew; `waiting` stands where the text will be. */
  clear(waiting, badge = "") {
    this.blocks = [];
    this.landed = 0;
    for (const cell of Object.values(this.cells)) cell.textContent = "–";
    this.prefill.textContent = "";
    this.bar.firstChild.style.width = "0%";
    this.badge(badge);
    fill(this.text, el("span.dim", {}, waiting));
  }

  badge(text, tone = "") {
    this.state.className = `badge ${tone}`;
    this.state.textContent = text;
    this.state.hidden = !text;
  }

  /** Show a whole lane; then `show` says how much of it. */
  load(lane, length) {
    this.clear("");
    this.lane = lane;
    this.length = length;
    fill(this.text);
    this.append(lane.rounds);
    const read = `${fmt.count(lane.stats.prompt_tokens)} prompt tokens read in ${fmt.seconds(lane.stats.prefill_s)}, before the clock starts`;
    this.prefill.textContent = lane.stats.notices?.length ? `${read}. ${lane.stats.notices.join(". ")}` : read;
  }

  /** More rounds, all still to land. */
  append(rounds) {
    if (!this.blocks.length) fill(this.text);
    for (const round of rounds) {
      const block = this.block(round, this.blocks.length);
      this.blocks.push(block);
      this.text.append(block);
    }
  }

  block(round, at) {
    const tokens = round.tokens.map(([, text], n) => el(`span.${kindOf(this.mode, round, n)}`, {}, text));
    const node = el("span.block.later", {}, tokens);
    if (this.onBlock && round.proposal?.length) {
      const text = round.tokens.map((token) => token[1]).join("").trim().slice(0, 80);
      node.setAttribute("role", "button");
      node.setAttribute("tabindex", "-1");
      node.setAttribute("aria-label",
        `Block ${at}: ${round.num_accepted} of ${round.proposal.length} drafts accepted, ${round.committed} ${round.committed === 1 ? "token" : "tokens"}: ${text}`);
      node.dataset.at = at;
      node.addEventListener("click", () => { this.focus(at); this.onBlock(at); });
    }
    return node;
  }

  /** The lane as it was `time` seconds after its first token. */
  show(time) {
    const landed = landedAt(this.lane, time), figures = figuresAt(this.lane, time);
    if (landed !== this.landed) this.land(landed, figures.done);
    this.figures(figures);
    this.badge(figures.done ? `done in ${fmt.seconds(figures.elapsed)}` : "", figures.done ? "good" : "");
    this.bar.firstChild.style.width = `${this.length > 0 ? (100 * Math.min(time, figures.elapsed)) / this.length : 100}%`;
  }

  land(landed, done) {
    const from = Math.min(landed, this.landed), to = Math.max(landed, this.landed);
    for (let at = Math.max(0, from - 1); at < to; at += 1) {
      this.blocks[at].classList.toggle("later", at >= landed);
      this.blocks[at].classList.remove("new");
    }
    if (landed > 0 && !done) this.blocks[landed - 1].classList.add("new");
    this.landed = landed;
    this.text.scrollTop = this.text.scrollHeight;
    this.rove();
  }

  /** While it is measured: everything that has come so far. */
  live(lane) {
    this.lane = lane;
    const fresh = lane.rounds.slice(this.blocks.length);
    this.blocks.at(-1)?.classList.remove("new");
    this.append(fresh);
    for (const block of this.blocks.slice(this.landed)) block.classList.remove("later");
    this.blocks.at(-1)?.classList.add("new");
    this.landed = this.blocks.length;
    this.text.scrollTop = this.text.scrollHeight;
    this.figures(figuresAt(lane, Infinity));
  }

  figures({ tokens, elapsed, speed, acceptance }) {
    this.cells.speed.textContent = fmt.fixed(speed);
    this.cells.tokens.textContent = fmt.count(tokens);
    this.cells.elapsed.textContent = `${elapsed.toFixed(2)} s`;
    this.cells.acceptance.textContent = this.mode === "plain" ? "1.00" : fmt.fixed(acceptance, 2);
  }

  // Blocks by keyboard: one of them is a tab stop, arrows move on, Enter opens it.

  choices() {
    return this.blocks.filter((block) => block.dataset.at && !block.classList.contains("later"));
  }

  rove() {
    if (!this.onBlock) return;
    const choices = this.choices();
    if (choices.some((block) => block.tabIndex === 0)) return;
    for (const block of this.blocks) if (block.dataset.at) block.tabIndex = -1;
    if (choices.length) choices[0].tabIndex = 0;
  }

  focus(at, scroll = true) {
    for (const block of this.blocks) if (block.tabIndex === 0) block.tabIndex = -1;
    const block = this.blocks[at];
    block.tabIndex = 0;
    block.focus({ preventScroll: !scroll });
  }

  onKey(event) {
    const current = event.target.closest?.("[data-at]");
    if (!current) return;
    const choices = this.choices(), at = choices.indexOf(current);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: choices.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.onBlock(Number(current.dataset.at));
    else if (to !== undefined && choices[to]) this.focus(Number(choices[to].dataset.at));
    else if (to === undefined) return;
    event.preventDefault();
  }
}
