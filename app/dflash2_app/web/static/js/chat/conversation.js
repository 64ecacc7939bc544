// The messages of a session on the screen. The reader's place is kept: new text scrolls only for who is at the end.
import { confirm, toast } from "../dialog.js";
import { el, fill } from "../dom.js";
import { RunningReply, questionView, replyView } from "./message.js";

const NEAR = 48; // pixels from the end that count as the end

export class Conversation {
  /** @param {() => string|null} waitingFor what a waiting reply waits for, if the page knows better: "loading" */
  constructor(waitingFor) {
    this.waitingFor = waitingFor;
    this.list = el("ol.messages", { "aria-label": "Messages" });
    this.below = el("div.below");
    this.scroller = el("div.scroller", { tabindex: "0", role: "region", "aria-label": "Conversation" }, this.list, this.below);
    this.jump = el("button.small.jump", { type: "button", hidden: true, onclick: () => this.toEnd() }, "↓ Newest");
    this.said = el("div.unseen", { role: "status", "aria-live": "polite" });
    this.node = el("div.conversation", {}, this.scroller, this.jump, this.said);
    this.views = new WeakMap(); // message → {node, last}
    this.running = null;
    this.atEnd = true;
    this.scroller.addEventListener("scroll", () => this.look(), { passive: true });
    new ResizeObserver(() => this.follow()).observe(this.list);
  }

  /** Show a session instead of the one before. */
  show(session) {
    this.running?.end();
    this.session = session;
    this.running = null;
    this.views = new WeakMap();
    this.said.textContent = "";
    this.update();
    this.toEnd();
  }

  /** Messages came, went or ended. */
  update() {
    const { session } = this;
    const { messages } = session;
    const wasRunning = this.running;
    const held = this.scroller.contains(document.activeElement);
    if (!session.running && wasRunning) this.ended();
    const nodes = messages.map((message, at) => this.view(message, at));
    this.node.classList.toggle("busy", session.running);
    if (!sameNodes(this.list, nodes)) fill(this.list, nodes);
    fill(this.below, this.bars());
    if (held && !this.scroller.contains(document.activeElement)) this.scroller.focus({ preventScroll: true }); // what was pressed is gone
    this.piece();
    if (session.running && !wasRunning) {
      this.say("The reply has begun.");
      this.toEnd();
    }
  }

  ended() {
    this.running.end();
    this.running = null;
    const last = this.session.last;
    const trouble = this.session.trouble?.text;
    const tokens = last?.numbers?.generated_tokens;
    this.say(trouble ?? (last?.partial || last?.role === "user" ? "The reply was stopped." : `The reply is complete${tokens ? `, ${tokens} tokens` : ""}.`));
  }

  say(text) {
    this.said.textContent = text;
  }

  view(message, at) {
    const { session } = this;
    const last = at === session.messages.length - 1;
    if (last && session.running) {
      this.running ??= new RunningReply(message);
      return this.running.node;
    }
    const known = this.views.get(message);
    if (known && known.last === last && known.at === at) return known.node;
    const node = message.role === "user"
      ? questionView(message, { edit: (text) => this.edit(at, text), remove: () => this.remove(at) })
      : replyView(message, { last, regenerate: () => session.regenerate(), remove: () => this.remove(at),
        goOn: () => session.send("Continue.") });
    this.views.set(message, { node, last, at });
    return node;
  }

  /** The running reply grew, or does something else now. */
  piece() {
    if (!this.running) return;
    const state = this.session.state === "waiting" ? this.waitingFor() ?? "waiting" : this.session.state;
    this.running.update(state, this.session.chat.model);
    this.follow();
  }

  async edit(at, text) {
    const { session } = this;
    if (session.running) {
      toast("Stop the reply first.");
      return;
    }
    const more = session.messages.length - at - 1;
    if (more > 1) {
      const sure = await confirm("Ask again?", `${more} later messages will be cut. You can undo this until you go on.`, { yes: "Ask again" });
      if (!sure || session.running) return;
    }
    this.views.delete(session.messages[at]); // should it come back, it is no longer being edited
    session.edit(at, text);
  }

  async remove(at) {
    const { session } = this;
    const [, count] = session.removes(at);
    const what = count === 1 ? "This message will be deleted." : "The question and its reply will be deleted together.";
    if (await confirm("Delete?", what, { yes: "Delete", danger: true })) session.remove(at);
  }

  /** What stands under the messages: a question without reply, and the way back. */
  bars() {
    const { session } = this;
    const { trouble } = session;
    const bars = [];
    if (trouble?.kind === "conflict") bars.push(conflictBar(session));
    else if (trouble?.kind === "save") {
      bars.push(bar("error", `Not saved: ${trouble.text}`, ["Try again", () => session.save()]));
    } else if (trouble) bars.push(bar("error", trouble.text, ["Retry", () => session.regenerate()]));
    else if (session.open) bars.push(bar("note", "This question has no reply yet.", ["Reply", () => session.regenerate()]));
    if (session.undo && !session.running) bars.push(bar("note", session.undo.label, ["Undo", () => session.bringBack()]));
    return bars;
  }

  look() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.atEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    this.jump.hidden = this.atEnd;
  }

  follow() {
    if (this.atEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.jump.hidden = false;
  }

  toEnd() {
    this.atEnd = true;
    this.follow();
    this.look();
  }
}

function sameNodes(list, nodes) {
  return list.children.length === nodes.length && nodes.every((node, at) => list.children[at] === node);
}

function bar(kind, text, ...buttons) {
  return el(`div.${kind}.row.bar`, { role: kind === "error" ? "alert" : null }, el("span.grow.wrap", {}, text),
    buttons.map(([label, onclick]) => el("button.small", { type: "button", onclick }, label)));
}

function conflictBar(session) {
  return bar("warning", `${session.trouble.text}. Nothing was overwritten.`,
    ["Show the newer version", () => session.reload().catch((error) => {
      session.trouble = { kind: "conflict", text: error.message };
      session.tell();
    })],
    ["Keep this one as a copy", () => session.keepCopy()]);
}
