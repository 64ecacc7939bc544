// What there is to know of one model, from this machine and the Hub; and the check of its files.
import { api, stream } from "../api.js";
import { dialog } from "../dialog.js";
import { el, fill, fmt } from "../dom.js";
import { KINDS, action, badge } from "./words.js";

/** Labelled lines; what is empty is left out. */
export function factList(pairs) {
  return el("dl.card-facts", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]));
}

export function modelFacts(facts) {
  return factList([
    ["Kind", KINDS[facts.kind] ?? facts.kind],
    ["Family", facts.family],
    ["Weights", facts.kind === "target" || facts.kind === "drafter" ? facts.quantization ?? "full" : null],
    ["Context", facts.context_length ? `${fmt.count(facts.context_length)} tokens` : null],
    ["Block size", facts.block_size],
    ["Size", facts.size_bytes === null ? null : fmt.bytes(facts.size_bytes)],
    ["Licence", facts.license],
    ["Updated", facts.updated],
    ["Downloads", facts.downloads === null ? null : fmt.count(facts.downloads)],
    ["Likes", facts.likes === null ? null : fmt.count(facts.likes)],
    ["Path", facts.path],
    ["Drafter", facts.drafter ? `${facts.drafter} (${facts.drafter_reason})` : null],
    ["Memory", facts.memory_text],
    ["On the Hub", facts.hub_url ? el("a", { href: facts.hub_url, target: "_blank", rel: "noopener noreferrer" }, facts.hub_url) : null],
  ]);
}

export function openDetails(model, { signal }) {
  const body = el("div.stack", { "aria-live": "polite" }, el("p.dim", {}, "Asking this machine and the Hub…"));
  api(`/api/models/details?name=${encodeURIComponent(model.name)}`, { signal }).then((facts) => {
    fill(body, modelFacts(facts),
      facts.newer_on_hub ? el("p.note", {}, "The Hub has a newer commit; downloading it again fetches what changed.") : null,
      facts.problem ? el("p.error", {}, facts.problem) : null,
      facts.notes.map((note) => el("p.note", {}, note)),
      facts.files.length ? el("details", {}, el("summary", {}, `${facts.files.length} files on the Hub`),
        el("div.scroll", {}, el("table", {}, el("tbody", {}, facts.files.map((file) =>
          el("tr", {}, el("td.wrap", {}, file.name), el("td.number", {}, fmt.bytes(file.size_bytes)))))))) : null,
      facts.tags.length ? el("div.row", {}, facts.tags.slice(0, 40).map((tag) => badge(tag))) : null);
  }, (error) => { if (error.name !== "AbortError") fill(body, el("p.error", {}, error.message)); });
  return dialog(model.name, (close) => [body, el("div.actions", {},
    el("button", { type: "button", onclick: () => close() }, "Close"))], { wide: true });
}

/** Read all files of a model and compare them with their checksums. */
export function verify(model, { signal }) {
  const stop = new AbortController();
  const bar = el("progress", { max: "1", value: 0, "aria-label": "Checked" });
  const line = el("p.wrap", { role: "status" }, "Reading…");
  const result = el("div.stack", { "aria-live": "polite" });
  async function run(remove) {
    fill(result);
    bar.hidden = false;
    try {
      await stream("/api/models/verify", { name: model.name, delete_damaged: remove }, {
        signal: AbortSignal.any([stop.signal, signal]),
        onEvent(data, event) {
          if (event === "progress") {
            bar.value = data.size ? data.done / data.size : 0;
            line.textContent = `${data.file}: ${fmt.bytes(data.done)} of ${fmt.bytes(data.size)}`;
          } else if (event === "result") show(data);
          else fill(result, el("p.error", {}, data.error.message));
        },
      });
    } catch (error) {
      if (error.name !== "AbortError") fill(result, el("p.error", {}, error.message));
    } finally {
      bar.hidden = true;
    }
  }
  function show(data) {
    line.textContent = `${data.files} files, ${fmt.bytes(data.size)}`;
    fill(result,
      data.good ? el("p.success", {}, "Every file is what the Hub gave.") : data.bad.map((bad) => el("p.error", {}, `${bad.name}: ${bad.problem}`)),
      data.unknown.length ? el("p.note", {}, `No checksum is known here for ${data.unknown.join(", ")}.`) : null,
      data.deleted_files ? el("p.note", {}, `${data.deleted_files} damaged files were deleted; the Downloader fetches them again.`) : null,
      !data.good && !data.deleted_files
        ? el("div", {}, action("Delete damaged files", () => run(true), { class: "danger" })) : null);
  }
  run(false);
  return dialog(`Verify ${model.name}`, (close) => [line, bar, result, el("div.actions", {},
    el("button", { type: "button", onclick: () => close() }, "Close"))]).finally(() => stop.abort());
}
