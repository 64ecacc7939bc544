// The question before a download: what comes, its licence, its size beside the free disk, and whether it fits.
import { api } from "../api.js";
import { dialog, toast } from "../dialog.js";
import { el, fill, fmt } from "../dom.js";
import { modelFacts } from "./details.js";
import { action } from "./words.js";

export async function openDownload(name, { signal }) {
  const body = el("div.stack", { "aria-live": "polite" }, el("p.dim", {}, "Asking the Hub…"));
  const fault = el("div", { role: "alert" });
  const queued = await dialog(`Download ${name}`, (close) => {
    const go = action("Download", async () => close(await begin()), { class: "primary", disabled: true,
      onError: (error) => fill(fault, el("p.error", {}, error.message)) });
    go.classList.remove("small");
    let drafter = null;
    const begin = () => api("/api/downloads", { body: { model: name, ...(drafter === null ? {} : { drafter }) } });
    api(`/api/downloads/card?name=${encodeURIComponent(name)}`, { signal }).then((card) => {
      const choice = ask(card, (value, fits) => { drafter = value; go.disabled = !fits; });
      fill(body, modelFacts({ ...card, drafter: null, path: null }), card.problem ? el("p.error", {}, card.problem) : null,
        card.gated ? el("p.warning", {}, "Its owner asks for an agreement before download: "
          + `agree at ${card.hub_url}, then log in with \`hf auth login\` on this machine.`) : null,
        card.terms.map((line) => el("p.warning", {}, line)), choice);
      if (card.problem) go.disabled = true;
    }, (error) => { if (error.name !== "AbortError") fill(body, el("p.error", {}, error.message)); });
    return [body, fault, el("div.actions", {}, el("button", { type: "button", onclick: () => close() }, "Cancel"), go)];
  }, { wide: true });
  if (queued) toast(`${name} is ${queued.state === "pending" ? "in line" : "coming"}.`);
  return queued;
}

/** The choice of the drafter, and the sum beside the free disk; `told(drafter, fits)` after every change. */
function ask(card, told) {
  const other = card.with_drafter;
  const box = el("input", { type: "checkbox", checked: other !== null && !other.problem, disabled: Boolean(other?.problem) });
  const terms = el("div.stack", {});
  const sum = el("p", { role: "status" });
  const count = () => {
    const both = other !== null && box.checked;
    const left = (card.left_bytes ?? 0) + (both ? other.left_bytes ?? 0 : 0);
    const fits = left === 0 || card.free_bytes >= left + card.spare_bytes;
    const state = left === 0 ? "Everything is here already; only what changed on the Hub is fetched."
      : `${fmt.bytes(left)} to fetch, ${fmt.bytes(card.free_bytes)} free on the disk.`;
    sum.className = fits ? "" : "error";
    sum.textContent = fits ? state : `${state} ${fmt.bytes(card.spare_bytes)} are left free for everybody else: too little room.`;
    fill(terms, both ? other.terms.map((line) => el("p.warning", {}, line)) : null,
      both && other.gated ? el("p.warning", {}, `${other.name}: its owner asks for an agreement before download.`) : null);
    told(other === null ? null : both ? other.name : "none", fits);
  };
  box.addEventListener("change", count);
  count();
  return [
    other === null ? (card.kind === "target" ? el("p.note", {}, "No drafter is known for it: it decodes plainly.") : null)
      : el("div", {}, el("label.check", {}, box, `With its drafter ${other.name}${other.size_bytes ? ` (${fmt.bytes(other.size_bytes)})` : ""}`),
        el("p.dim.wrap", {}, other.problem ?? other.reason)),
    terms, sum,
  ];
}
