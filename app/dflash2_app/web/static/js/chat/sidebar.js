// The list of chats: newest first, searched on the server, each with what can be done with it.
import { confirm, dialog, prompt, toast } from "../dialog.js";
import { el, fill, save } from "../dom.js";
import { chats, remembered } from "./chats.js";
import { sessions } from "./sessions.js";

const SEARCH_MS = 250;
const DAY_MS = 86_400_000;

export class Sidebar {
  /** @param {{open: (id: string|null) => void, gone: (id: string) => void}} actions */
  constructor(actions) {
    this.actions = actions;
    this.current = null;
    this.search = el("input", { type: "search", id: "chat-search", placeholder: "Search chats", autocomplete: "off", maxlength: 200 });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refresh(), SEARCH_MS);
    });
    this.list = el("ul.chats", { "aria-label": "Chats" });
    this.state = el("p.dim", { role: "status" });
    this.fresh = el("button.primary.grow", { type: "button", onclick: () => actions.open(null) }, "New chat");
    this.node = el("aside.sidebar", { "aria-label": "Saved chats", id: "chat-list" },
      el("div.row", {}, this.fresh,
        el("button.quiet.close", { type: "button", "aria-label": "Close the list", onclick: () => actions.close() }, "✕")),
      el("label.unseen", { for: "chat-search" }, "Search chats"), this.search, this.state, this.list);
  }

  /** Read the list again; what was asked before and comes late is dropped. */
  async refresh() {
    this.asked?.abort();
    const asked = this.asked = new AbortController();
    const words = this.search.value.trim();
    try {
      const found = await chats.list(words, asked.signal);
      this.found = found;
      this.state.textContent = found.length ? "" : words ? "Nothing found." : "No chats yet. They are kept on this machine, and shared with the terminal's chat.";
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.state.textContent = `The list cannot be read: ${error.message}`;
    }
  }

  show(id) {
    this.current = id;
    this.draw();
  }

  /** A chat was saved here: it is the newest now. */
  put(summary) {
    const others = (this.found ?? []).filter((one) => one.id !== summary.id);
    const listed = others.length < (this.found ?? []).length;
    if (!listed && this.search.value.trim()) return; // whether it belongs to what is searched, the server knows
    this.found = [summary, ...others];
    this.state.textContent = "";
    this.draw();
  }

  /** Draw what changed only: a line that is replaced between press and release of a button would lose the click. */
  draw() {
    const before = this.items ?? new Map();
    this.items = new Map((this.found ?? []).map((one) => {
      const key = JSON.stringify([one, one.id === this.current, sessions.isRunning(one.id)]);
      const known = before.get(one.id);
      return [one.id, known?.key === key ? known : { key, node: this.item(one) }];
    }));
    const nodes = [...this.items.values()].map((item) => item.node);
    if (nodes.length === this.list.children.length && nodes.every((node, at) => node === this.list.children[at])) return;
    const focused = document.activeElement?.closest?.(".chats [data-id]")?.dataset.id;
    fill(this.list, nodes);
    if (focused) (this.items.get(focused)?.node.querySelector("a") ?? this.fresh).focus();
  }

  item(one) {
    const name = one.heading || one.id;
    const running = sessions.isRunning(one.id);
    const link = el("a", { href: `#/chat/${encodeURIComponent(one.id)}`, "aria-current": one.id === this.current ? "page" : null, onclick: (event) => {
      if (event.metaKey || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      this.actions.open(one.id);
    } }, el("span.name", { dir: "auto" }, name),
    el("span.about.dim", {}, one.problem ? "cannot be read" : `${when(one.updated_at)} · ${one.turns} ${one.turns === 1 ? "turn" : "turns"}`),
    running ? el("span.badge.accent", {}, "writing") : null);
    return el("li", { dataset: { id: one.id } }, link,
      el("button.small.quiet", { type: "button", "aria-label": `More for ${name}`, onclick: () => this.more(one) }, "⋯"));
  }

  /** What can be done with a chat. */
  async more(one) {
    const button = (label, value, kind = "") => (close) => el("button", { type: "button", class: kind, onclick: () => close(value) }, label);
    const choices = one.problem ? [] : [button("Rename", "rename"), button("Export as Markdown", "markdown"), button("Export as JSON", "json")];
    const choice = await dialog(one.heading || one.id, (close) => [
      one.problem ? el("p.error.wrap", {}, one.problem) : el("p.dim.wrap", {}, `${one.id}${one.model ? ` · ${one.model}` : ""}`),
      el("div.chat-choices", {}, [...choices, button("Delete", "delete", "danger")].map((make) => make(close))),
      el("div.actions", {}, el("button", { type: "button", onclick: () => close() }, "Close")),
    ]);
    if (!choice) return;
    try {
      await this.carryOut(choice, one);
    } catch (error) {
      toast(error.message);
    }
  }

  async carryOut(choice, one) {
    if (choice === "rename") await this.rename(one);
    else if (choice === "delete") await this.remove(one);
    else {
      const file = await chats.export(one.id, choice);
      save(file.name, file.text, file.type);
    }
  }

  async rename(one) {
    const title = await prompt("Rename", "Title", { value: one.heading.slice(0, 200) });
    if (title === null) return;
    const session = sessions.get(one.id);
    await (session ? session.rename(title) : chats.rename(one.id, title));
    await this.refresh();
  }

  async remove(one) {
    const sure = await confirm("Delete this chat?", `“${one.heading || one.id}” will be deleted for good, also for the terminal's chat.`, { yes: "Delete", danger: true });
    if (!sure) return;
    const session = sessions.get(one.id);
    if (session) {
      session.deleted = true;
      session.stop();
      await session.saving;
    }
    try {
      await chats.remove(one.id);
    } catch (error) {
      if (session) session.deleted = false;
      throw error;
    }
    remembered.keepDraft(one.id, "");
    toast("The chat was deleted.");
    this.actions.gone(one.id);
    await this.refresh();
  }
}

/** A time for people: today's hour, else the day. */
function when(text) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return "at an unknown time";
  const today = Date.now() - time.getTime() < DAY_MS && new Date().getDate() === time.getDate();
  return today ? time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })
    : time.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}
