// The side-by-side page: a form, two lanes with a replay, the outcome, and the kept races.
import { api } from "../api.js";
import { toast } from "../dialog.js";
import { el, fill, save, select } from "../dom.js";
import { showBlock } from "../race/block.js";
import { RaceForm } from "../race/form.js";
import { Kept } from "../race/kept.js";
import { Lane } from "../race/lane.js";
import { showOutcome } from "../race/outcome.js";
import { pictureOf } from "../race/picture.js";
import { MODES, TITLES, lengthOf, parseRecord, words } from "../race/record.js";
import { Replay } from "../race/replay.js";
import { runRace } from "../race/run.js";
import { keep } from "../race/store.js";

export const title = "Side by side";
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const REPLAYED_MS = 250, LIVE_MS = 100; // between two drawings of what is being measured
const MOST_FILE_BYTES = 32e6;

export async function mount(root, { query, signal }) {
  const choices = await api("/api/race", { signal });
  const page = new RacePage(root, choices, query);
  signal.addEventListener("abort", () => page.end());
  if (query.get("start") === "1") {
    page.form.node.requestSubmit();
  }
  return () => page.end();
}

class RacePage {
  constructor(root, choices, query) {
    this.record = null;
    this.running = null;
    this.draw = this.drawing = null;
    this.form = new RaceForm(choices, query, (order, live) => this.start(order, live));
    this.lanes = { plain: new Lane("plain"), dflash2: new Lane("dflash2", (at) => this.openBlock(at)) };
    this.replay = new Replay((time, state) => this.onTime(time, state));
    this.kept = new Kept({ onShow: (record) => { this.show(record); this.stage.scrollIntoView({ block: "start" }); }, onSave: saveJson });
    this.build(root);
    this.kept.refresh();
  }

  build(root) {
    this.state = el("p.race-state", { role: "status", "aria-live": "polite" });
    this.prompt = el("p.wrap.raced", { dir: "auto" });
    this.subject = el("p.dim.wrap", {});
    this.progress = el("progress.grow", { "aria-label": "Progress of the race" });
    this.stop = el("button.danger", { type: "button", onclick: () => this.running?.abort() }, "Stop");
    this.going = el("div.panel.row.controls", { role: "group", "aria-label": "Race under way", hidden: true }, this.progress, this.stop);
    this.controls = this.buildControls();
    this.outcome = el("section.panel.stack.outcome", { "aria-label": "Outcome", hidden: true });
    this.stage = el("section.stack.stage", { "aria-label": "The race", hidden: true },
      el("div.stack", {}, el("div.what", {}, this.prompt, this.subject), this.going, this.controls,
        el("div.lanes", {}, MODES.map((mode) => this.lanes[mode].node)),
        el("ul.legend", {},
          el("li", {}, el("span.swatch.first", {}), "from the prompt's pass"),
          el("li", {}, el("span.swatch.accepted", {}), "accepted draft"),
          el("li", {}, el("span.swatch.bonus", {}), "the target's own token"),
          el("li.dim", {}, "Choose a block of DFlash 2 (click, or Tab, arrows and Enter) to take it apart."))),
      this.outcome);
    this.empty = el("p.panel.empty", {}, "Choose a prompt and press Race: the model answers it plainly, then with DFlash 2, and both are replayed side by side as they were measured.");
    this.node = el("div.stack.race", {},
      el("div", {}, el("h1", {}, title),
        el("p.dim", {}, "One prompt, decoded plainly and with DFlash 2 by the same model. The two are measured one after the other, so that neither slows the other; the text must be the same.")),
      this.form.node, this.state, this.empty, this.stage, this.loader(), this.kept.node);
    root.append(this.node);
    this.node.addEventListener("dragover", (event) => { event.preventDefault(); this.node.classList.add("dropping"); });
    this.node.addEventListener("dragleave", () => this.node.classList.remove("dropping"));
    this.node.addEventListener("drop", (event) => {
      event.preventDefault();
      this.node.classList.remove("dropping");
      this.open(event.dataTransfer.files[0]);
    });
  }

  buildControls() {
    this.play = el("button", { type: "button", onclick: () => (this.replay.playing ? this.replay.pause() : this.replay.play()) }, "▶ Replay");
    this.scrub = el("input.grow", { type: "range", min: 0, max: 1, step: "any", value: 0, "aria-label": "Time of the replay",
      oninput: () => {
        const wanted = Number(this.scrub.value); // pausing tells the time, which moves the slider back
        this.replay.pause();
        this.replay.seek(wanted);
      } });
    this.clock = el("span.number.clock", {});
    const speed = select(SPEEDS.map((one) => [String(one), `${one}×`]), "1", { "aria-label": "Speed of the replay",
      onchange: () => { this.replay.speed = Number(speed.value); } });
    return el("div.panel.row.controls", { role: "group", "aria-label": "Replay" }, this.play, this.scrub, this.clock, speed);
  }

  loader() {
    const file = el("input", { type: "file", accept: ".json,application/json", class: "unseen", id: "race-file", tabindex: -1,
      "aria-label": "A race saved as JSON", onchange: () => { this.open(file.files[0]); file.value = ""; } });
    this.fileFault = el("p.error", { role: "alert", hidden: true });
    return el("div.row.load", {}, file, el("button.small", { type: "button", onclick: () => file.click() }, "Open a saved race…"),
      el("span.dim", {}, "or drop its JSON file anywhere on this page"), this.fileFault);
  }

  async start(order, live) {
    if (this.running) return;
    this.running = new AbortController();
    history.replaceState(null, "", `#/race?${this.form.query()}`); // a reload finds the form as it was
    const pressed = document.activeElement === this.form.start;
    this.form.busy(true);
    this.outcome.hidden = true;
    this.controls.hidden = true;
    this.empty.hidden = true;
    this.stage.hidden = this.going.hidden = false;
    if (pressed) this.stop.focus({ preventScroll: true });
    this.replay.pause();
    const before = this.record;
    this.record = null; // the lanes are no longer those of a finished race
    this.head(order.prompt, "");
    for (const mode of MODES) this.lanes[mode].clear(mode === "plain" ? "runs first" : "runs second", "waits");
    this.progress.removeAttribute("value");
    this.say("Loading and checking…");
    this.state.scrollIntoView({ block: "start" });
    try {
      const record = await runRace(order, {
        signal: this.running.signal, onState: (text) => this.say(text),
        onUpdate: (record, event, data) => this.onUpdate(record, event, data, live),
      });
      this.finish(record, live);
    } catch (error) {
      this.abandon(error, before);
    } finally {
      this.running = null;
      this.form.busy(false);
      const held = this.going.contains(document.activeElement);
      this.going.hidden = true;
      if (held) (this.controls.checkVisibility() ? this.play : this.form.start).focus({ preventScroll: true });
    }
  }

  onUpdate(record, event, data, live) {
    if (event === "run") this.head(record.run.request.prompt, record.run.subject);
    if (event === "lane") this.lanes[data.lane].clear("reads the prompt…", "runs");
    if (event === "round") this.drawSoon(() => this.drawRounds(record, data.lane, live), live ? LIVE_MS : REPLAYED_MS);
    if (event === "lane_end") {
      this.drawNow();
      this.lanes[data.lane].badge("measured", "good");
      if (!live) fill(this.lanes[data.lane].text, el("span.dim", {}, `measured: ${data.stats.generated_tokens} tokens`));
    }
  }

  drawRounds(record, mode, live) {
    const lane = record.lanes[mode], count = lane.rounds.reduce((sum, round) => sum + round.committed, 0);
    if (live) this.lanes[mode].live(lane);
    else fill(this.lanes[mode].text, el("span.dim", {}, `measured now, shown in the replay: ${count} tokens`));
    const most = record.run.max_tokens, part = mode === "plain" ? 0 : most;
    this.progress.max = 2 * most;
    this.progress.value = part + Math.min(count, most);
    this.say(`${TITLES[mode]} is measured, alone`);
  }

  /** Draw everything that has come, not every token by itself: what is measured shares this machine with the page. */
  drawSoon(draw, wait) {
    this.draw = draw;
    this.drawing ??= setTimeout(() => this.drawNow(), wait);
  }

  drawNow() {
    const draw = this.draw;
    this.drawNothing();
    draw?.();
  }

  drawNothing() {
    clearTimeout(this.drawing);
    this.draw = this.drawing = null;
  }

  /** What is raced here. */
  head(prompt, subject) {
    this.prompt.textContent = prompt;
    this.subject.textContent = subject;
  }

  async finish(record, live) {
    this.show(record);
    if (!live && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.replay.seek(0);
      this.replay.play();
    }
    const said = words(record);
    this.say(`Done. ${said.sentence} ${said.verdict}`);
    await this.keepRace(record);
  }

  async keepRace(record) {
    try {
      const gone = await keep(record);
      if (gone) toast("The oldest kept race had to go.");
      await this.kept.refresh();
    } catch (error) {
      toast(`This race could not be kept in the browser: ${error?.message ?? error}`);
    }
  }

  abandon(error, before) {
    this.drawNothing();
    this.stage.hidden = true;
    this.empty.hidden = false;
    if (before) this.show(before);
    if (error.name === "AbortError") this.say("Stopped.");
    else {
      this.say("");
      this.form.fault(error);
    }
  }

  /** Show a finished race, at its end. */
  show(record, fromFile = false) {
    this.record = record;
    this.empty.hidden = true;
    this.stage.hidden = this.controls.hidden = this.outcome.hidden = false;
    this.head(record.run.request.prompt, record.run.subject);
    const length = Math.max(...MODES.map((mode) => lengthOf(record.lanes[mode])));
    for (const mode of MODES) this.lanes[mode].load(record.lanes[mode], length);
    this.scrub.max = length || 1;
    showOutcome(this.outcome, record, this.actions(record, fromFile));
    this.replay.load(length);
  }

  actions(record, fromFile) {
    return el("div.row.actions", {},
      el("button", { type: "button", onclick: () => this.savePicture(record) }, "Save as PNG"),
      el("button", { type: "button", onclick: () => saveJson(record) }, "Save as JSON"),
      fromFile && el("button", { type: "button", onclick: async (event) => {
        event.target.disabled = true;
        await this.keepRace(record);
      } }, "Keep in this browser"),
      el("button.quiet", { type: "button", onclick: () => { this.form.fillIn(record.run.request); this.form.node.scrollIntoView({ block: "start" }); } }, "Use these settings again"));
  }

  onTime(time, { playing, ended }) {
    if (!this.record) return;
    for (const mode of MODES) this.lanes[mode].show(time);
    this.scrub.value = time;
    this.clock.textContent = `${time.toFixed(2)} of ${this.replay.length.toFixed(2)} s`;
    this.scrub.setAttribute("aria-valuetext", this.clock.textContent);
    this.play.textContent = playing ? "❚❚ Pause" : ended ? "▶ Replay" : "▶ Play";
  }

  async openBlock(at) {
    this.replay.pause();
    await showBlock(this.record, at);
    this.lanes.dflash2.focus(at, false);
  }

  async savePicture(record) {
    save(`${fileName(record)}.png`, await pictureOf(record), "image/png");
  }

  async open(file) {
    if (!file) return;
    this.fileFault.hidden = true;
    try {
      if (this.running) throw new Error("A race is running; stop it first.");
      if (file.size > MOST_FILE_BYTES) throw new Error(`${file.name}: got ${file.size} bytes, expected at most ${MOST_FILE_BYTES}.`);
      const record = parseRecord(await file.text());
      this.show(record, true);
      this.say(`Opened ${file.name}.`);
    } catch (error) {
      this.fileFault.textContent = `${file.name} cannot be opened. ${error.message}`;
      this.fileFault.hidden = false;
    }
  }

  say(text) {
    if (this.state.textContent !== text) this.state.textContent = text;
  }

  end() {
    this.running?.abort();
    this.drawNothing();
    this.replay.pause();
  }
}

function saveJson(record) {
  save(`${fileName(record)}.json`, JSON.stringify(record, null, 1));
}

function fileName(record) {
  return `dflash2-race-${record.run.created.replace(/[^0-9TZ]/g, "").slice(0, 16)}-${record.run.id.slice(0, 6)}`;
}
