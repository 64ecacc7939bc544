// Where a question is written: Enter sends, Shift+Enter begins a line, Escape stops a reply. Drafts are kept per chat.
import { el } from "../dom.js";
import { remembered } from "./chats.js";

const DRAFT_MS = 300;
const MOST_ROWS = 10;

export class Composer {
  /** @param {{send: (text: string) => boolean, stop: () => void}} actions `send` says whether it took the text */
  constructor(actions) {
    this.actions = actions;
    this.id = null;
    this.running = false;
    this.area = el("textarea", { id: "ask", rows: 1, dir: "auto", placeholder: "Ask something", "aria-describedby": "ask-keys",
      autocomplete: "off", enterkeyhint: "send" });
    this.button = el("button.primary", { type: "submit" }, "Send");
    this.stop = el("button.danger", { type: "button", hidden: true, onclick: () => actions.stop() }, "Stop");
    this.keys = el("p.keys.dim", { id: "ask-keys" }, "Enter sends · Shift+Enter begins a line · Escape stops");
    this.node = el("form.composer", { onsubmit: (event) => { event.preventDefault(); this.send(); } },
      el("label.unseen", { for: "ask" }, "Your question"),
      el("div.line", {}, this.area, this.button, this.stop), this.keys);
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.area.addEventListener("input", () => this.typed());
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }

  typed() {
    this.fit();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), DRAFT_MS);
  }

  keep() {
    clearTimeout(this.timer);
    remembered.keepDraft(this.id, this.area.value);
  }

  send() {
    const text = this.area.value;
    if (this.running || !text.trim() || !this.actions.send(text)) return;
    this.area.value = "";
    this.keep();
    this.fit();
  }

  /** Show the draft of a chat; null is a new one's. */
  show(id) {
    if (this.shown) this.keep();
    this.shown = true;
    this.id = id;
    this.area.value = remembered.draft(id);
    this.fit();
  }

  /** A new chat got its id: the draft goes with it. */
  adopt(id) {
    remembered.keepDraft(this.id, "");
    this.id = id;
    this.keep();
  }

  setRunning(running) {
    const focused = document.activeElement === this.stop || document.activeElement === this.button;
    this.running = running;
    this.button.hidden = running;
    this.stop.hidden = !running;
    if (focused) this.area.focus();
  }

  focus() {
    this.area.focus();
  }

  /** As many lines as the text has, within reason. */
  fit() {
    this.area.style.height = "auto";
    const line = parseFloat(getComputedStyle(this.area).lineHeight) || 24;
    this.area.style.height = `${Math.min(this.area.scrollHeight + 2, MOST_ROWS * line)}px`;
  }
}
