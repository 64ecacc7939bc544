// The frame: which page is shown, by the part of the address after "#/".
//
// A page is a module with `title` and `mount(root, context)`, which may return a function that ends it.
// `context`: {path, query} of the address ("#/models/mini?tab=x" → path ["mini"], query URLSearchParams) and
// `signal`, aborted when the page is left.
import { ApiError } from "./api.js";
import { el, fill } from "./dom.js";
import { mayLeave } from "./leaving.js";
import { chooseBy } from "./theme.js";

const PAGES = {
  race: ["Side by side", () => import("./pages/race.js")],
  chat: ["Chat", () => import("./pages/chat.js")],
  models: ["Models", () => import("./pages/models.js")],
  bench: ["Bench", () => import("./pages/bench.js")],
  status: ["Status", () => import("./pages/status.js")],
};
const FIRST = "race";

let leave = null; // what ends the page that is shown
let visits = 0;
let asking = false;

async function show() {
  const [, address, search] = /^#?\/?([^?]*)\??(.*)$/s.exec(location.hash);
  const [name, ...path] = address.split("/").filter(Boolean).map(decoded);
  const [label, load] = PAGES[name] ?? PAGES[FIRST];
  const visit = (visits += 1);
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.textContent === label) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone not all tabs have room
    } else link.removeAttribute("aria-current");
  }
  leave?.();
  leave = null;
  const main = document.getElementById("main");
  const ended = new AbortController();
  try {
    const page = await load();
    if (visit !== visits) return; // somebody went on meanwhile
    document.title = `${page.title} · dflash2-mlx`;
    const root = el("div", {});
    fill(main, root);
    const end = await page.mount(root, { path, query: new URLSearchParams(search), signal: ended.signal });
    const stop = () => { ended.abort(); end?.(); };
    if (visit === visits) leave = stop;
    else stop();
  } catch (error) {
    if (visit === visits) fill(main, failure(error));
  }
}

function failure(error) {
  const why = error instanceof ApiError ? error.message : `one of its files could not be read (${error.message})`;
  return el("div.stack", {}, el("p.error", { role: "alert" }, `This page cannot be shown: ${why}`),
    el("div", {}, el("button", { type: "button", onclick: () => location.reload() }, "Try again")));
}

/** A part of an address; one that is no proper code stands for itself. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Another address: go there, or put back the one before, when something on the page is not to be lost. */
async function go(event) {
  if (asking) return;
  asking = true;
  const may = await mayLeave();
  asking = false;
  if (may) show();
  else history.pushState(null, "", event.oldURL);
}

function start() {
  fill(document.querySelector(".tabs"),
    Object.entries(PAGES).map(([name, [label]]) => el("a", { href: `#/${name}` }, label)));
  chooseBy(document.getElementById("theme"));
  addEventListener("hashchange", go);
  show();
}

start();
