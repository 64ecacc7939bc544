// Which model answers: a choice of the served ones, with their state, and whether it drafts.
import { el, fill } from "../dom.js";
import { models } from "./chats.js";
import { fallback } from "./figures.js";

const EVERY_MS = 30_000;
const WAITING_MS = 1500; // while a model is being loaded

export class ModelPicker {
  /** @param {{chosen: (name: string) => void, told: (about: object|null) => void}} actions */
  constructor(actions, signal) {
    this.actions = actions;
    this.signal = signal;
    this.known = [];
    this.name = "";
    this.select = el("select", { id: "chat-model", "aria-label": "Model" });
    this.select.addEventListener("change", () => this.actions.chosen(this.select.value));
    this.badge = el("span", { role: "status" });
    this.node = el("div.row.picker", {}, this.select, this.badge);
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  get names() {
    return this.known.map((one) => one.id);
  }

  get state() {
    return this.known.find((one) => one.id === this.name);
  }

  /** What a reply that waits is waiting for; null when the model is there. */
  waitingFor() {
    return this.state && !this.state.loaded ? "loading" : null;
  }

  /** The served model a chat means: its own name, or that of its folder, as the terminal keeps whole paths. */
  match(name) {
    if (this.names.includes(name)) return name;
    const short = name?.split("/").filter(Boolean).at(-1);
    return this.names.find((known) => known === short) ?? null;
  }

  /** Show the model of a chat; one that is not served stays visible. */
  show(name) {
    this.name = name;
    this.draw();
    return this.look();
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      if (document.hidden) return;
      this.known = await models.status(this.signal);
      this.draw();
      this.look();
    } catch (error) {
      if (error.name !== "AbortError") fill(this.badge, el("span.badge.bad", {}, error.message));
    } finally {
      const wait = this.busy && this.waitingFor() ? WAITING_MS : EVERY_MS;
      if (!this.signal.aborted) this.timer = setTimeout(() => this.refresh(), wait);
    }
  }

  /** Ask what the model's own settings are, when that may have changed; nobody need wait for it. */
  async look() {
    const key = `${this.name}:${this.state?.loaded}`;
    if (!this.state || key === this.looked) return;
    this.looked = key;
    try {
      this.actions.told(await models.about(this.name));
    } catch {
      this.looked = null; // its badge tells what is wrong
    }
  }

  draw() {
    const label = (one) => `${one.id} — ${one.problem ? "cannot be loaded" : one.is_loading ? "loading" : one.loaded ? "loaded" : "not loaded"}`;
    const strange = this.name && !this.state ? [el("option", { value: this.name }, `${this.name} — not served here`)] : [];
    const key = JSON.stringify([this.name, this.known.map(label)]);
    if (key !== this.drawn) {
      this.drawn = key;
      fill(this.select, strange, this.known.map((one) => el("option", { value: one.id }, label(one))));
      this.select.value = this.name;
    }
    const badge = this.badges();
    if (badge?.outerHTML !== this.badge.firstElementChild?.outerHTML) fill(this.badge, badge); // or it is read out again
  }

  badges() {
    const one = this.state;
    if (!one) return this.name && this.known.length ? el("span.badge.bad", {}, "Choose a served model") : null;
    if (one.problem) return el("span.badge.bad.wrap", { title: one.problem }, one.problem);
    if (one.is_loading) return el("span.badge", {}, "loading");
    if (!one.loaded) return el("span.badge", {}, "loads with the first question");
    if (one.dflash_active) return el("span.badge.good", {}, "DFlash active");
    return el("span.badge.warn.wrap", {}, fallback({ mode: "plain", fallback_reason: one.dflash_fallback_reason }));
  }
}
