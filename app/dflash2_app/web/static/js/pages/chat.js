// The chat page: the list, one conversation, its settings. Replies live in their sessions, not here.
import { toast } from "../dialog.js";
import { el } from "../dom.js";
import { remembered } from "../chat/chats.js";
import { Composer } from "../chat/composer.js";
import { Controls } from "../chat/controls.js";
import { Conversation } from "../chat/conversation.js";
import { ModelPicker } from "../chat/models.js";
import { Session } from "../chat/session.js";
import { sessions } from "../chat/sessions.js";
import { Sidebar } from "../chat/sidebar.js";

export const title = "Chat";

const NARROW = "(max-width: 900px)";

export async function mount(root, { path, query, signal }) {
  const page = new ChatPage(root, signal);
  await page.begin(path[0] ?? null, query.get("model"));
  return () => page.end();
}

class ChatPage {
  constructor(root, signal) {
    this.signal = signal;
    this.sidebar = new Sidebar({ open: (id) => this.go(id), gone: (id) => this.gone(id), close: () => this.drawer(false) });
    this.picker = new ModelPicker({ chosen: (name) => this.choose(name), told: (about) => this.told(about) }, signal);
    this.conversation = new Conversation(() => this.picker.waitingFor());
    this.composer = new Composer({ send: (text) => this.send(text), stop: () => this.session.stop() });
    this.controls = new Controls((edit) => this.session.change(edit));
    this.frame(root);
    this.listeners = { change: () => this.changed(), replaced: () => this.show(this.session), piece: () => this.conversation.piece(), saved: (event) => this.saved(event.detail) };
    addEventListener("keydown", (event) => this.key(event), { signal });
    addEventListener("pagehide", () => this.composer.keep(), { signal });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.lookAgain(); }, { signal });
    this.narrow = matchMedia(NARROW);
    this.narrow.addEventListener("change", () => this.drawer(false), { signal });
  }

  frame(root) {
    this.heading = el("h1.wrap", { dir: "auto" }, "New chat");
    this.listButton = el("button.list-button", { type: "button", "aria-expanded": "false", "aria-controls": "chat-list", onclick: () => this.drawer(true) }, "Chats");
    this.settingsButton = el("button", { type: "button", "aria-expanded": "false", "aria-controls": "chat-settings", onclick: () => this.panel(this.settings.hidden) }, "Settings");
    this.settings = el("aside.settings", { id: "chat-settings", "aria-label": "Settings of this chat", hidden: true },
      el("div.row", {}, el("h2.grow", {}, "Settings of this chat"),
        el("button.quiet", { type: "button", "aria-label": "Close the settings", onclick: () => this.panel(false) }, "✕")),
      this.controls.node);
    this.welcome = el("div.empty", {}, el("p", {}, "Ask something, and see how fast the reply comes."),
      el("p", {}, "Chats are kept on this machine; the terminal's chat can go on with them."));
    this.conversation.scroller.prepend(this.welcome);
    this.backdrop = el("div.backdrop", { hidden: true, onclick: () => this.drawer(false) });
    root.className = "chat";
    this.middle = el("section.middle", { "aria-label": "Chat" },
      el("header.bar-top", {}, this.listButton, this.heading, this.picker.node, this.settingsButton),
      this.conversation.node, this.composer.node);
    root.append(this.sidebar.node, this.backdrop, this.middle, this.settings);
  }

  async begin(id, model) {
    this.drawer(false);
    this.show(this.fresh());
    this.opening = id !== null;
    this.sidebar.refresh();
    await this.picker.refresh();
    if (id) await this.open(id);
    else {
      const known = this.picker.match(model);
      if (model && !known) toast(`${model} is not served here.`);
      if (known) this.choose(known);
      else if (!this.session.chat.model) this.show(this.session); // now there is a model to begin with
    }
    this.opening = false;
    if (!this.narrow.matches) this.composer.focus();
  }

  end() {
    this.composer.keep();
    this.ignore();
  }

  fresh() {
    return Session.fresh(this.firstModel());
  }

  /** The model used last, else one that is loaded, else the first. */
  firstModel() {
    const { names, known } = this.picker;
    const last = remembered.model;
    return names.includes(last) ? last : known.find((one) => one.loaded)?.id ?? names[0] ?? "";
  }

  /** Begin a new chat, or go to a saved one; the address follows. */
  async go(id) {
    this.drawer(false);
    if (id === this.session.id && id) return;
    history.pushState(null, "", id ? `#/chat/${encodeURIComponent(id)}` : "#/chat");
    if (id) await this.open(id);
    else this.start();
    this.composer.focus();
  }

  start() {
    this.show(this.fresh());
  }

  async open(id) {
    const visit = this.visit = Symbol(id);
    try {
      const session = await sessions.open(id);
      if (visit === this.visit && !this.signal.aborted) this.show(session);
    } catch (error) {
      if (visit !== this.visit) return;
      this.start();
      history.replaceState(null, "", "#/chat");
      toast(error.message, 10);
    }
  }

  ignore() {
    for (const [name, listener] of Object.entries(this.listeners ?? {})) this.session?.removeEventListener(name, listener);
  }

  show(session) {
    this.ignore();
    this.visit = null;
    this.session = session;
    for (const [name, listener] of Object.entries(this.listeners)) session.addEventListener(name, listener);
    const { chat } = session;
    chat.model = chat.model ? this.picker.match(chat.model) ?? chat.model : this.firstModel();
    this.composer.show(session.id);
    this.controls.show(session.chat);
    this.picker.looked = null; // what is known of the model is told anew, to this session
    this.picker.show(session.chat.model);
    this.sidebar.show(session.id);
    this.conversation.show(session);
    this.changed();
  }

  // What the session tells.

  changed() {
    const { session } = this;
    this.controls.chat = session.chat;
    this.heading.textContent = headingOf(session.chat);
    this.welcome.hidden = session.messages.length > 0;
    this.composer.setRunning(session.running);
    this.picker.busy = session.running;
    const count = Controls.changed(session.chat);
    this.settingsButton.textContent = count ? `Settings (${count} changed)` : "Settings";
    this.conversation.update();
    if (session.running !== this.wasRunning) {
      this.wasRunning = session.running;
      this.picker.refresh();
      this.sidebar.draw();
    }
  }

  saved({ id, begun, summary }) {
    if (begun) {
      history.replaceState(null, "", `#/chat/${encodeURIComponent(id)}`);
      this.composer.adopt(id);
    }
    this.heading.textContent = summary.heading || "New chat";
    this.sidebar.current = id;
    this.sidebar.put(summary);
  }

  /** What the chosen model is, once that is known. */
  told(about) {
    this.controls.tell(about);
    const { session } = this;
    if (!about.loaded || about.id !== session.chat.model) return;
    // The name the terminal would load it by, unless that leads back to another one of those served here.
    const model = this.picker.match(about.target) === about.id ? about.target : about.id;
    session.pair = { model, drafter: about.drafter };
  }

  gone(id) {
    if (id === this.session.id) {
      history.replaceState(null, "", "#/chat");
      this.start();
      if (!this.narrow.matches) this.composer.focus();
    }
  }

  /** Back in this tab: the terminal may have gone on with the chat. */
  async lookAgain() {
    this.sidebar.refresh();
    this.picker.refresh();
    const { session } = this;
    if (!session.id || session.running || !session.saved) return;
    try {
      if (await session.reload()) toast("This chat was changed elsewhere; it is shown as it is now.");
    } catch (error) {
      toast(error.message);
    }
  }

  // What the reader does.

  send(text) {
    const { session } = this;
    if (this.opening) {
      toast("The chat is being opened.");
      return false;
    }
    const faulty = this.controls.faulty;
    if (faulty) {
      this.panel(true);
      faulty.input.focus();
      toast("One of the settings cannot be used.");
      return false;
    }
    if (!this.picker.state) {
      toast(this.picker.names.length ? "Choose a model that is served here." : "The server serves no model.");
      this.picker.select.focus();
      return false;
    }
    sessions.add(session);
    session.send(text);
    return true;
  }

  choose(name) {
    remembered.model = name;
    this.session.choose(name);
    this.picker.show(name);
  }

  key(event) {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (this.session.running && event.target !== this.sidebar.search) this.session.stop();
    else if (this.sidebar.node.classList.contains("open")) this.drawer(false);
    else if (this.narrow.matches && !this.settings.hidden) this.panel(false);
  }

  /** The list of chats over the page, where there is no room beside it. */
  drawer(open) {
    const over = this.narrow.matches;
    const { node } = this.sidebar;
    const was = node.classList.contains("open");
    node.classList.toggle("open", open && over);
    node.inert = over && !open;
    this.backdrop.hidden = !(open && over);
    this.listButton.setAttribute("aria-expanded", String(open && over));
    this.cover();
    if (open && over) this.sidebar.search.focus();
    else if (was) this.listButton.focus();
  }

  /** What lies below an open list or panel is out of reach, also for the keyboard. */
  cover() {
    this.middle.inert = this.narrow.matches && (this.sidebar.node.classList.contains("open") || !this.settings.hidden);
  }

  panel(open) {
    this.settings.hidden = !open;
    this.settingsButton.setAttribute("aria-expanded", String(open));
    this.cover();
    if (open) this.controls.system.input.focus();
    else this.settingsButton.focus();
  }
}

function headingOf(chat) {
  const text = (chat.title || chat.messages[0]?.content || "New chat").split(/\s+/).join(" ").trim();
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}
