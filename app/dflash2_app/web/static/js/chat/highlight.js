// Colours for code. The library writes markup; only its spans and their classes are taken over from it.
import { el } from "../dom.js";
import hljs from "../../vendor/highlight.min.js";

const MOST = 60_000; // characters; colouring more would hold the page up

/** Code in a language the library knows as coloured spans, anything else as it is. */
export function highlight(code, language) {
  if (!language || !hljs.getLanguage(language) || code.length > MOST) return code;
  const { value } = hljs.highlight(code, { language, ignoreIllegals: true });
  // Such a document runs nothing and loads nothing.
  return [...new DOMParser().parseFromString(value, "text/html").body.childNodes].map(taken);
}

function taken(node) {
  if (node.nodeName !== "SPAN") return node.textContent;
  const names = [...node.classList].filter((name) => /^[\w-]+$/.test(name));
  return el("span", { class: names.join(" ") }, [...node.childNodes].map(taken));
}
