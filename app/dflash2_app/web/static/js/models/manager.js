// The Manager tab: every model of this machine with its state, and what can be done with it.
import { api } from "../api.js";
import { toast } from "../dialog.js";
import { el, fill, fmt, select, uid } from "../dom.js";
import { modelCard } from "./card.js";
import { openSettings } from "./settings.js";
import { action } from "./words.js";

const SHOWN = [["all", "All models"], ["target", "Targets"], ["drafter", "Drafters"], ["loaded", "In memory"],
  ["other", "Cannot be used"]];

export function manager(root, { query, signal }) {
  const filter = el("input", { type: "search", id: uid("filter"), placeholder: "name, family or path", autocomplete: "off" });
  const kind = select(SHOWN, "all", { id: uid("kind") });
  const summary = el("p.dim", { role: "status" });
  const notes = el("div.stack", {});
  const list = el("ul.model-list", { "aria-label": "Models on this machine" });
  const places = el("div", {});
  const fault = el("div", { role: "alert" });
  const refresh = action("Refresh", () => read(), { onError: fail });
  refresh.classList.remove("small");
  root.append(
    el("div.row.models-bar", {},
      el("div.field.grow", {}, el("label", { for: filter.id }, "Filter"), filter),
      el("div.field", {}, el("label", { for: kind.id }, "Show"), kind),
      refresh),
    fault, summary, el("h2.unseen", {}, "Models on this machine"), list, notes, places);
  let cards = [];
  let found = null;
  let asked = query.get("settings");

  filter.addEventListener("input", sift);
  kind.addEventListener("change", sift);
  fill(list, el("li.dim", {}, "Looking through the models…"));
  read().catch(fail);

  async function read() {
    const answer = await api("/api/models", { signal });
    fill(fault);
    found = answer;
    const served = answer.only_served.map((state) => onlyServed(state));
    cards = [...answer.models, ...served].map((model) => modelCard(model, { reread: () => read().catch(fail), signal }));
    fill(list, cards.map((card) => card.node));
    fill(notes, answer.notes.map((note) => el("p.note", {}, note)));
    if (answer.settings_problem) offerRecovery(answer.settings_problem);
    sift();
    await readPlaces();
    if (asked) {
      const name = asked;
      asked = null;
      openSettings(name, { signal, onSaved: () => read().catch(fail) });
    }
  }

  async function readPlaces() {
    if (found.settings_problem) return fill(places);
    const overview = await api("/api/settings", { signal });
    return fill(places, placesPanel(overview, found, () => read().catch(fail), fail));
  }

  function offerRecovery(text) {
    fill(fault, el("div.error.stack", {}, el("p", {}, text), el("div", {}, action("Keep it under another name and start afresh",
      async () => {
        const { moved } = await api("/api/settings/recover", { body: {} });
        toast(moved.join("; ") || "Every file can be read.");
        await read();
      }, { onError: fail }))));
  }

  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards) {
      const right = kind.value === "all" || (kind.value === "loaded" ? card.loaded : card.model.kind === kind.value);
      const here = right && words.every((word) => card.text.includes(word));
      card.node.hidden = !here;
      shown += here;
    }
    list.querySelector(".empty")?.remove();
    if (found && !shown) list.append(empty(cards.length));
    const size = cards.reduce((sum, card) => sum + (card.model.size_bytes ?? 0), 0);
    if (found) {
      const count = `${cards.length} ${cards.length === 1 ? "model" : "models"}`;
      summary.textContent = `${shown < cards.length ? `${shown} of ` : ""}${count}, ${fmt.bytes(size)}; ${fmt.bytes(found.free_bytes)} free on the disk`;
    }
  }

  function empty(any) {
    return el("li.empty", {}, any ? "No model matches." : [
      "No models on this machine yet. ", el("a", { href: "#/models?tab=downloader" }, "The Downloader finds some.")]);
  }

  function fail(error) {
    if (!signal.aborted) fill(fault, el("p.error", {}, error.message));
  }

  return {
    models(states) {
      const known = new Map(states.map((state) => [state.id, state]));
      for (const card of cards) if (card.model.served_as) card.update(known.get(card.model.served_as) ?? null);
      sift();
      const names = new Set(cards.map((card) => card.model.served_as));
      const strange = states.filter((state) => !state.profile && !names.has(state.id)).map((state) => state.id).join();
      if (found && strange && strange !== this.strange) read().catch(fail);
      this.strange = strange;
    },
    downloads(tasks) {
      const done = tasks.filter((task) => task.state === "completed").map((task) => `${task.id}.${task.tries}`).join();
      if (this.seen !== undefined && this.seen !== done) read().catch(fail);
      this.seen = done;
    },
  };
}

/** A model that the server offers and that lies in none of the folders, such as the embedded pair. */
function onlyServed(state) {
  return { name: state.id, id: state.id, settings_id: state.id, source: "server", path: null, kind: "target", family: null,
    quantization: null, size_bytes: state.weight_bytes, memory: null, problem: null, drafter: null, context_length: null,
    served_as: state.id, state };
}

function placesPanel(overview, found, reread, fail) {
  const targets = found.models.filter((model) => model.kind === "target");
  const known = targets.some((model) => model.settings_id === overview.default_model);
  const options = [["", "none (the embedded mini pair answers)"],
    ...(overview.default_model && !known ? [[overview.default_model, overview.default_model]] : []),
    ...targets.map((model) => [model.settings_id, model.alias ?? model.id])];
  const chosen = select(options, overview.default_model ?? "", { id: uid("default") });
  chosen.addEventListener("change", async () => {
    chosen.disabled = true;
    try {
      const name = chosen.value || overview.default_model;
      const model = targets.find((one) => one.settings_id === name);
      await api("/api/settings/save", { body: { model: model?.name ?? name, values: { is_default: chosen.value ? true : null } } });
      toast(chosen.value ? `${name} is the default model now.` : "There is no default model now.");
      reread();
    } catch (error) {
      fail(error);
    } finally {
      chosen.disabled = false;
    }
  });
  const shared = overview.shared_with_omlx ? ", shared with oMLX" : "";
  return el("details.panel.places", {}, el("summary", {}, "Default model and folders"),
    el("div.field", {}, el("label", { for: chosen.id }, "Default model"), chosen,
      el("span.hint", {}, "Used when a request or a command names none.")),
    el("dl", {},
      el("dt", {}, "Settings"), el("dd", {}, `${overview.base_path} (${overview.base_path_origin}${shared})`),
      el("dt", {}, "Model folders"), el("dd", {}, overview.model_folders.join(", ")),
      el("dt", {}, "Hub cache"), el("dd", {}, `${overview.hub_cache}, ${fmt.bytes(overview.free_bytes)} free`)));
}
