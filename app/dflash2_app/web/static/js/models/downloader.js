// The Downloader tab: the Hub's search, what a model would cost to fetch, and the queue of downloads.
import { api } from "../api.js";
import { el, fill, fmt, select, uid } from "../dom.js";
import { openDownload } from "./download.js";
import { taskList } from "./tasks.js";
import { action, badge, facts, fit } from "./words.js";

const SORTS = [["downloads", "Downloads"], ["trending", "Trending"], ["likes", "Likes"], ["created", "Newest"], ["updated", "Updated"]];
const LIMITS = ["20", "50", "100"];
const AT_ONCE = 2;

export function downloader(root, { query, signal }) {
  const text = el("input", { type: "search", id: uid("search"), placeholder: "Qwen3.8 27B, or owner/name", autocomplete: "off" });
  const author = el("input", { type: "text", id: uid("author"), placeholder: "any", autocomplete: "off" });
  const tag = el("input", { type: "text", id: uid("tag"), placeholder: "any", autocomplete: "off" });
  const sort = select(SORTS, "downloads", { id: uid("sort") });
  const limit = select(LIMITS, "20", { id: uid("limit") });
  const any = el("input", { type: "checkbox" });
  const fault = el("div", { role: "alert" });
  const status = el("p.dim", { role: "status" }, "Search the Hub, or name a model as owner/name.");
  const results = el("ul.model-list", { "aria-label": "Found on the Hub" });
  const tasks = taskList({ onError: fail });
  const one = (label, control) => el("div.field", {}, el("label", { for: control.id }, label), control);
  const form = el("form.panel.stack", { role: "search" },
    el("div.row.models-bar", {}, el("div.field.grow", {}, el("label", { for: text.id }, "Search"), text),
      el("button.primary", { type: "submit" }, "Search")),
    el("details", {}, el("summary", {}, "Filters"), el("div.row", {}, one("Owner", author), one("Tag", tag), one("Best first by", sort),
      one("Most lines", limit), el("label.check", {}, any, "Also models not marked for MLX"))));
  form.addEventListener("submit", (event) => { event.preventDefault(); search().catch(fail); });
  root.append(tasks.node, form, fault, status, el("h2.unseen", {}, "Found on the Hub"), results);
  let turn = 0;
  if (query.get("get")) openDownload(query.get("get"), { signal }).catch(fail);

  async function search() {
    const words = text.value.trim();
    fill(fault);
    const asked = new URLSearchParams({ sort: sort.value, limit: limit.value });
    if (words) asked.set("text", words);
    if (author.value.trim()) asked.set("author", author.value.trim());
    if (tag.value.trim()) asked.set("tag", tag.value.trim());
    if (any.checked) asked.set("any_format", "true");
    const number = (turn += 1);
    status.textContent = "Asking the Hub…";
    fill(results);
    let found;
    try {
      found = await api(`/api/downloads/search?${asked}`, { signal });
    } catch (error) {
      status.textContent = "";
      throw error;
    }
    if (number !== turn) return;
    const named = /^[\w.-]+\/[\w.-]+$/.test(words) && !found.models.some((model) => model.name === words);
    status.textContent = found.models.length ? `${found.models.length} found at ${found.endpoint}`
      : any.checked ? "Nothing found." : "Nothing found; the filters can also show models not marked for MLX.";
    const lines = found.models.map((model) => resultCard(model, { signal, onError: fail }));
    fill(results, named ? el("li.panel.row", {}, el("span.wrap.grow", {}, `${words}: look at this very name`),
      action("Download…", () => openDownload(words, { signal }), { onError: fail })) : null, lines.map((line) => line.node));
    lookCloser(lines, () => number === turn && !signal.aborted);
  }

  function fail(error) {
    if (!signal.aborted && error.name !== "AbortError") fill(fault, el("p.error", {}, error.message));
  }

  return { downloads: (list) => tasks.show(list) };
}

/** Ask for size and memory of the lines that are seen, a few at a time: search itself does not tell them. */
function lookCloser(lines, going) {
  const waiting = [];
  let running = 0;
  const next = () => {
    while (going() && running < AT_ONCE && waiting.length) {
      running += 1;
      waiting.shift().look().finally(() => { running -= 1; next(); });
    }
  };
  const byNode = new Map(lines.map((line) => [line.node, line]));
  const watcher = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      waiting.push(byNode.get(target));
    }
    next();
  });
  for (const line of lines) watcher.observe(line.node);
}

function licence(model) {
  if (model.non_commercial) return badge(`${model.license}: not for commercial use`, "warn");
  return model.license ? badge(model.license) : badge("no licence named", "warn");
}

function resultCard(model, { signal, onError }) {
  const closer = el("div", { "aria-live": "polite" });
  const node = el("li.panel.model-card", {},
    el("h3", {}, model.name),
    el("div.badges", {}, model.here ? badge("on this machine", "good") : null,
      model.gated ? badge("asks for an agreement", "warn") : null, licence(model)),
    facts([["Downloads", model.downloads === null ? null : fmt.count(model.downloads)],
      ["Likes", model.likes === null ? null : fmt.count(model.likes)], ["Updated", model.updated]]),
    closer,
    el("div.row", {}, action(model.here ? "Download again…" : "Download…", () => openDownload(model.name, { signal }), {
      onError, "aria-label": `Download ${model.name}` })));
  return {
    node,
    async look() {
      try {
        const card = await api(`/api/downloads/card?name=${encodeURIComponent(model.name)}`, { signal });
        const chance = fit(card.memory);
        fill(closer, card.problem ? el("p.error", {}, card.problem) : facts([["Size", card.size_bytes === null ? null : fmt.bytes(card.size_bytes)],
          ["Family", card.family], ["Weights", card.quantization ?? (card.family ? "full" : null)],
          ["Memory", chance ? el("span", { class: `badge ${chance.kind}`, title: chance.title }, chance.text) : null],
          ["Drafter", card.drafter]]));
      } catch (error) {
        if (error.name !== "AbortError") fill(closer, el("p.dim", {}, error.message));
      }
    },
  };
}
