// Markdown as elements. The library only reads; every element is made here from a short list, so that nothing a model
// writes can become markup, an address other than http, https or mailto, or a request for an image.
import { el } from "../dom.js";
import "../../vendor/markdown-it.min.js";
import { highlight } from "./highlight.js";

const parser = globalThis.markdownit({ html: false, linkify: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
parser.validateLink = (url) => /^(https?:\/\/|mailto:)/i.test(url.trim());

const WRITTEN = new Set(["p", "li", "th", "td"]); // each in the direction of its own script
const BLOCKS = new Set(["p", "ul", "ol", "li", "blockquote", "thead", "tbody", "tr", "th", "td", "em", "strong", "s"]);
const COPIED_MS = 1500;
const FORMULA = /\\\(.+?\\\)|\\\[.+?\\\]|\$\$.+?\$\$/sy;

// Formulas are shown as they were written: read as Markdown, they would lose their backslashes and stars.
parser.inline.ruler.before("escape", "formula", (state, silent) => {
  FORMULA.lastIndex = state.pos;
  const found = FORMULA.exec(state.src);
  if (!found) return false;
  if (!silent) state.push("formula", "", 0).content = found[0];
  state.pos += found[0].length;
  return true;
});

/** Elements for a whole text. */
export function render(source) {
  return build(parser.parse(source, {}), false);
}

/** A text that grows: what is complete is drawn once, only the last block is drawn again. */
export class LiveMarkdown {
  constructor(root) {
    this.root = root;
    this.source = "";
    this.settled = 0; // characters whose blocks stay as they are
    this.tail = el("div.tail");
    this.timer = null;
    root.replaceChildren(this.tail);
  }

  /** Show the text so far; drawing waits the longer, the longer it takes. */
  show(source) {
    this.source = source;
    this.timer ??= setTimeout(() => this.draw(), this.pause ?? 0);
  }

  draw() {
    this.timer = null;
    const began = performance.now();
    let rest = this.source.slice(this.settled);
    const tokens = parser.parse(rest, {});
    const cut = lastBlock(tokens, rest);
    if (cut.offset) {
      this.tail.before(build(tokens.slice(0, cut.index), false));
      this.settled += cut.offset;
      rest = rest.slice(cut.offset);
    }
    this.tail.replaceChildren(build(cut.offset ? parser.parse(rest, {}) : tokens, true));
    this.pause = Math.min(500, Math.max(30, 4 * (performance.now() - began)));
  }

  /** Nothing more comes; what is drawn stays until the whole text takes its place. */
  end() {
    clearTimeout(this.timer);
  }
}

/** Where the last block begins, if its first line is complete: half a line may still join the block before it. */
function lastBlock(tokens, source) {
  const starts = tokens.flatMap((token, index) => (token.level === 0 && token.nesting >= 0 && token.map ? [index] : []));
  const index = starts.at(-1);
  if (starts.length < 2) return { offset: 0, index: 0 };
  let offset = 0;
  for (let line = 0; line < tokens[index].map[0]; line += 1) offset = source.indexOf("\n", offset) + 1;
  return source.indexOf("\n", offset) < 0 ? { offset: 0, index: 0 } : { offset, index };
}

/** @param {boolean} live whether the last block still grows */
function build(tokens, live) {
  const root = document.createDocumentFragment();
  const open = [root];
  tokens.forEach((token, at) => {
    const growing = live && at === tokens.length - 1;
    if (token.nesting === 1) open.push(begin(token, open.at(-1)));
    else if (token.nesting === -1) open.pop();
    else if (token.type === "inline") open.at(-1).append(build(token.children, false));
    else open.at(-1).append(single(token, growing));
  });
  return root;
}

function begin(token, parent) {
  if (token.hidden) return parent; // paragraphs of a tight list
  if (token.type === "link_open") return inside(parent, link(token.attrGet("href"), token.attrGet("title")));
  if (token.type === "table_open") {
    const table = el("table");
    parent.append(el("div.scroll", { tabindex: "0", role: "group", "aria-label": "Table" }, table));
    return table;
  }
  if (token.type === "heading_open") return inside(parent, el(`h${Math.min(6, Number(token.tag.slice(1)) + 2)}`, { dir: "auto" }));
  const node = el(BLOCKS.has(token.tag) ? token.tag : "div", { dir: WRITTEN.has(token.tag) ? "auto" : null });
  if (token.tag === "ol" && token.attrGet("start")) node.setAttribute("start", token.attrGet("start"));
  const align = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "");
  if (align) node.style.textAlign = align[1];
  return inside(parent, node);
}

function inside(parent, node) {
  parent.append(node);
  return node;
}

function single(token, growing) {
  switch (token.type) {
    case "text":
    case "text_special":
      return token.content;
    case "softbreak":
      return "\n";
    case "hardbreak":
      return el("br");
    case "hr":
      return el("hr");
    case "formula":
      return el("span.formula", { dir: "ltr" }, token.content);
    case "code_inline":
      return el("code", {}, token.content);
    case "code_block":
    case "fence":
      return codeBlock(token.content, token.info?.trim().split(/\s+/)[0] ?? "", growing);
    case "image": // never loaded: its address would tell another host that this was read
      return link(token.attrGet("src"), token.attrGet("title"), `Image: ${token.content || token.attrGet("src")}`);
    default:
      return token.content;
  }
}

function link(href, title, ...children) {
  return el("a", { href, title, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function codeBlock(text, language, growing) {
  const code = el("code", {}, growing ? text : highlight(text, language));
  const button = el("button.small.quiet", { type: "button" }, "Copy");
  button.setAttribute("aria-label", `Copy code${language ? `, ${language}` : ""}`);
  button.addEventListener("click", () => copy(text.replace(/\n$/, ""), button));
  return el("div.code", {}, el("div.code-head", {}, el("span", {}, language), button),
    el("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" }, code));
}

/** Copy text, and say on the button that it is done, or that the browser refused. */
export async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = byHand(text);
  }
  const word = done ? "Copied" : "Not allowed";
  if (button.textContent === word) return; // pressed twice
  const [shown, name] = [button.textContent, button.getAttribute("aria-label")];
  button.textContent = word;
  button.setAttribute("aria-label", word);
  setTimeout(() => {
    button.textContent = shown;
    button.setAttribute("aria-label", name);
  }, COPIED_MS);
}

/** The older way, for pages that are not on this machine's own address over http. */
function byHand(text) {
  const area = el("textarea", { value: text, readOnly: true, class: "unseen" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
