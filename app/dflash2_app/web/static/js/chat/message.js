// One message on the screen, and what can be done with it.
import { el, fill } from "../dom.js";
import { details, fallback } from "./figures.js";
import { LiveMarkdown, copy, render } from "./markdown.js";

const STATES = { waiting: "Waiting for the server", running: "Reading the prompt", thinking: "Thinking", answering: "Writing" };

/** What a running reply is doing, in words. */
export function stateText(state, model) {
  if (state === "loading") return `Loading ${model}`;
  const place = /^queue position (\d+)$/.exec(state ?? "");
  if (place) return `Waiting in line, ${place[1]} in front`;
  return STATES[state] ?? state ?? "";
}

/** A question; `actions` are {edit, remove}. */
export function questionView(message, { edit, remove }) {
  const body = el("div.text.plain", { dir: "auto" }, message.content);
  const node = el("li.message.user", {}, el("h2.unseen", {}, "You"), body);
  const copyButton = action("Copy", () => copy(message.content, copyButton), "Copy question");
  const leave = () => {
    fill(node, el("h2.unseen", {}, "You"), body, tools);
    editButton.focus();
  };
  const editButton = action("Edit", () => node.replaceChildren(editor(message, edit, leave)), "Edit question", true);
  const tools = el("div.tools", {}, copyButton, editButton,
    action("Delete", remove, "Delete question", true));
  node.append(tools);
  return node;
}

function editor(message, edit, cancel) {
  const area = el("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1),
    "aria-label": "Your question", dir: "auto" });
  const send = () => { if (area.value.trim()) edit(area.value); };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  setTimeout(() => { area.focus(); area.setSelectionRange(area.value.length, area.value.length); });
  return el("div.editor", {}, area, el("div.row", {},
    el("button.primary.small", { type: "button", onclick: send }, "Send"),
    el("button.small", { type: "button", onclick: cancel }, "Cancel")));
}

/** @param {boolean} idle whether it is offered only while no reply runs */
function action(label, onclick, name, idle = false) {
  return el("button.small.quiet", { type: "button", onclick, class: idle ? "idle-only" : "", "aria-label": name }, label);
}

/** A finished reply; `actions` are {regenerate, remove, goOn}, of which the last message has all. */
export function replyView(message, { last, regenerate, remove, goOn }) {
  const node = replyFrame(message);
  if (message.reasoning_content) node.append(thinking(message.reasoning_content, false).node);
  if (message.content) node.append(el("div.text.markdown", {}, render(message.content)));
  else if (!message.reasoning_content) node.append(el("p.dim", {}, "The reply is empty."));
  node.append(...endings(message, last, goOn, regenerate));
  const copyButton = action("Copy", () => copy(message.content, copyButton), "Copy reply");
  node.append(el("div.tools", {}, message.content ? copyButton : null,
    last && !message.error ? action("Regenerate", regenerate, "Regenerate reply", true) : null,
    action("Delete", remove, "Delete reply", true)));
  if (message.numbers) node.append(details(message.numbers));
  return node;
}

function replyFrame(message) {
  return el("li.message.assistant", {}, el("h2.unseen", {}, "Reply"), badge(message.numbers));
}

function badge(numbers) {
  const reason = numbers ? fallback(numbers) : null;
  return reason ? el("p.row", {}, el("span.badge.warn", {}, reason)) : null;
}

/** Why a reply ends where it does. */
function endings(message, last, goOn, retry) {
  const notes = (message.numbers?.notices ?? []).filter((text) => typeof text === "string").map((text) => el("p.note", {}, text));
  const more = last ? el("button.small.idle-only", { type: "button", onclick: goOn, title: "Sends “Continue.”" }, "Continue") : null;
  if (message.error) {
    notes.push(el("div.error.row", { role: "alert" }, el("span.grow.wrap", {}, message.error),
      last ? el("button.small.idle-only", { type: "button", onclick: retry }, "Retry") : null));
  } else if (message.finish_reason === "length") {
    notes.push(el("div.warning.row", {}, el("span.grow", {}, "Cut: the limit of tokens was reached."), more));
  } else if (message.partial) {
    notes.push(el("div.row", {}, el("span.badge", {}, "stopped"), more));
  }
  return notes;
}

function thinking(text, live) {
  const body = el("div.text.plain", { dir: "auto" }, text);
  const summary = el("summary", {}, live ? "Thinking…" : "Thinking");
  return { node: el("details.thinking", { open: live }, summary, body), body, summary };
}

/** The reply in progress: grows by `update`, redrawn by nobody else. */
export class RunningReply {
  constructor(message) {
    this.message = message;
    this.node = replyFrame(message);
    this.state = el("p.state.dim", {}, el("span.dots", { "aria-hidden": "true" }), el("span.words"));
    this.node.append(this.state);
    this.thought = null;
    this.answer = null;
  }

  update(state, model) {
    this.showThinking();
    this.showAnswer();
    const numbers = this.message.numbers;
    const speed = numbers?.tokens_per_second ? ` · ${numbers.generated_tokens} tokens, ${numbers.tokens_per_second.toFixed(1)} tokens/s` : "";
    this.state.querySelector(".words").textContent = stateText(state, model) + speed;
  }

  showThinking() {
    const text = this.message.reasoning_content;
    if (!text) return;
    if (!this.thought) {
      this.thought = thinking("", true);
      this.thought.body.append(document.createTextNode(""));
      this.state.before(this.thought.node);
    }
    const { body } = this.thought;
    const atEnd = body.scrollHeight - body.scrollTop - body.clientHeight < 24;
    body.firstChild.appendData(text.slice(body.firstChild.length));
    if (atEnd) body.scrollTop = body.scrollHeight;
  }

  showAnswer() {
    if (!this.message.content) return;
    if (!this.answer) {
      const body = el("div.text.markdown");
      this.answer = new LiveMarkdown(body);
      this.state.before(body);
      if (this.thought) {
        this.thought.node.open = false;
        this.thought.summary.textContent = "Thinking";
      }
    }
    this.answer.show(this.message.content);
  }

  /** Nothing more is drawn. */
  end() {
    this.answer?.end();
  }
}
