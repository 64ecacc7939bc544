// One chat: its messages, the reply in progress, and saving. Knows nothing of the screen; who shows it listens.
//
// Events: "change" (messages or state), "replaced" (by what is on the server), "piece" (the running reply grew),
// "saved" (detail: the server's answer).
// A reply belongs to its session: it runs to its end and is saved whether or not anybody looks.
import { ApiError } from "../api.js";
import { chats, emptyChat } from "./chats.js";
import { fillReply, requestOf } from "./request.js";

const KEEP_MS = 3000; // how often a running reply is saved
const LATER_MS = 600; // settings are saved so long after the last change

export class Session extends EventTarget {
  constructor({ id = null, revision = null, chat }) {
    super();
    this.id = id;
    this.take(chat, revision);
    this.state = null; // of the running reply: "waiting", "queue position 2", "running", "thinking", "answering"
    this.trouble = null; // {kind: "reply" | "save" | "conflict", text}
    this.undo = null; // {label, messages}
    this.pair = null; // {model, drafter} as the terminal calls what answers here; null while that is not known
    this.saving = Promise.resolve();
    this.saved = true;
    this.changes = 0; // counts what there is to save
  }

  static fresh(model) {
    return new Session({ chat: emptyChat(model) });
  }

  static async read(id) {
    return new Session(await chats.read(id));
  }

  take(chat, revision) {
    this.chat = { ...emptyChat(chat.model), ...chat };
    this.revision = revision;
  }

  get running() { return this.stopper !== undefined; }
  get messages() { return this.chat.messages; }
  get last() { return this.messages.at(-1); }
  /** Whether the last question still has no reply. */
  get open() { return !this.running && this.last?.role === "user"; }

  tell(name = "change", detail = null) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  // Replies.

  /** Ask; a question that has no reply yet is replaced, as questions and replies must take turns. */
  send(text) {
    if (this.running) return Promise.resolve();
    this.undo = null;
    if (this.open) {
      this.keepFor("The question without a reply was replaced.");
      this.messages.pop();
    }
    this.messages.push({ role: "user", content: text });
    return this.answer();
  }

  stop() {
    this.stopper?.abort();
  }

  /** Another reply to the last question; the old one can be brought back. */
  regenerate() {
    if (this.running || !this.messages.length) return Promise.resolve();
    const before = [...this.messages];
    if (this.last.role === "assistant") {
      this.keepFor("The reply was made anew.");
      this.messages.pop();
    }
    return this.answer(before);
  }

  /** Ask a question anew in other words; what followed it is cut and can be brought back. */
  edit(at, text) {
    if (this.running) return Promise.resolve();
    this.keepFor("The question was changed, and what followed it was cut.");
    this.messages.splice(at, Infinity, { role: "user", content: text });
    return this.answer();
  }

  /** Take a message away: a question with its reply, the last reply alone. */
  remove(at) {
    if (this.running) return;
    const [from, count] = this.removes(at);
    this.keepFor(count === 1 ? "The message was deleted." : "The question and its reply were deleted.");
    this.messages.splice(from, count);
    this.trouble = null;
    this.later(0);
    this.tell();
  }

  /** What `remove` takes: where it begins and how many, as questions and replies must take turns. */
  removes(at) {
    const reply = this.messages[at].role === "assistant";
    if (reply && at === this.messages.length - 1) return [at, 1];
    const from = reply ? at - 1 : at;
    return [from, Math.min(2, this.messages.length - from)];
  }

  keepFor(label) {
    this.undo = { label, messages: [...this.messages] };
  }

  bringBack() {
    if (this.running || !this.undo) return;
    this.chat.messages = this.undo.messages;
    this.undo = null;
    this.trouble = null;
    this.later(0);
    this.tell();
  }

  /** Reply to the last message; `before` comes back when nothing comes of it. */
  async answer(before = null) {
    const body = requestOf(this.chat);
    const message = { role: "assistant", content: "", reasoning_content: "", partial: true };
    this.stopper = new AbortController();
    this.trouble = null;
    this.messages.push(message);
    this.state = "waiting";
    this.tell();
    this.save(); // the question is kept, whatever becomes of the reply
    const keeping = setInterval(() => this.save(), KEEP_MS);
    try {
      await fillReply(body, message, {
        signal: this.stopper.signal,
        onState: (state) => this.enter(state),
        onPiece: () => this.tell("piece"),
      });
    } catch (error) {
      this.failed(error, message);
    } finally {
      clearInterval(keeping);
      this.stopper = undefined;
      this.state = null;
    }
    this.settle(message, before);
    this.tell();
    await this.save();
  }

  enter(state) {
    if (state === this.state) return;
    this.state = state;
    this.tell("piece");
  }

  failed(error, message) {
    if (error.name === "AbortError") return; // stopped
    const text = error instanceof ApiError ? error.message : `the reply could not be read: ${error.message}`;
    if (message.content || message.reasoning_content) message.error = text;
    else this.trouble = { kind: "reply", text };
  }

  /** Leave out what is empty; a reply of which nothing came is none. */
  settle(message, before) {
    message.reasoning_content = message.reasoning_content.replace(/^\n+|\n+$/g, "");
    if (!message.reasoning_content) delete message.reasoning_content;
    if (!message.partial) delete message.partial;
    if (message.content || message.reasoning_content || message.finish_reason) return;
    this.messages.pop();
    if (before) {
      this.chat.messages = before;
      this.undo = null;
    }
  }

  // Saving.

  /** Let another model answer from now on. */
  choose(model) {
    this.pair = null;
    this.change((chat) => { chat.model = model; chat.drafter = null; });
  }

  /** Change settings, system text or model; saved a little later. */
  change(edit) {
    edit(this.chat);
    if (this.id) this.later(LATER_MS);
    this.tell();
  }

  later(wait) {
    clearTimeout(this.timer);
    this.note();
    this.timer = setTimeout(() => this.save(), wait);
  }

  /** Write the chat; one write after the other, each over the version the last one made. */
  save() {
    clearTimeout(this.timer);
    const mine = this.note();
    this.saving = this.saving.then(() => (mine === this.changes ? this.write() : null)); // the newest call writes for all
    return this.saving;
  }

  note() {
    this.saved = false;
    this.changes += 1;
    return this.changes;
  }

  async write() {
    if (this.trouble?.kind === "conflict" || this.deleted) return;
    const chat = { ...this.chat, ...this.pair, messages: this.messages.filter((one) => one.role === "user" || one.content
      || one.reasoning_content || one.finish_reason) };
    if (!this.id && !chat.messages.length) return;
    const mine = this.changes;
    try {
      const told = this.id ? await chats.save(this.id, this.revision, chat) : await chats.create(chat);
      const begun = !this.id;
      this.id = told.id;
      this.revision = told.revision;
      this.saved = mine === this.changes;
      if (this.trouble?.kind === "save") this.trouble = null;
      this.tell("saved", { ...told, begun });
    } catch (error) {
      this.trouble = { kind: error.code === "chat_changed" ? "conflict" : "save", text: error.message };
      this.tell();
    }
  }

  /** In line with the saves, as each is told the revision of the one before. */
  rename(title) {
    const renamed = this.saving.then(() => this.renameNow(title));
    this.saving = renamed.catch(() => {}); // who asked is told
    return renamed;
  }

  async renameNow(title) {
    const told = await chats.rename(this.id, title, this.revision);
    this.revision = told.revision;
    this.chat.title = told.summary.title;
    this.tell("saved", told);
  }

  /** Show what is on the server; false when that is what is here. */
  async reload() {
    const [changes, before] = [this.changes, this.revision];
    const { chat, revision } = await chats.read(this.id);
    const same = revision === before && this.trouble?.kind !== "conflict";
    if (same || this.running || this.changes !== changes) return false;
    this.take(chat, revision);
    this.pair = this.trouble = this.undo = null;
    this.saved = true;
    this.tell("replaced");
    return true;
  }

  /** After a conflict: keep what is here under a name of its own. */
  async keepCopy() {
    this.id = this.revision = this.trouble = null;
    await this.save();
    this.tell();
  }
}
