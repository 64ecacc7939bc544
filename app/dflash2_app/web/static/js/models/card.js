// One model of the Manager tab.
import { api } from "../api.js";
import { confirm, prompt, toast } from "../dialog.js";
import { el, fill, fmt } from "../dom.js";
import { openDetails, verify } from "./details.js";
import { openSettings } from "./settings.js";
import { KINDS, action, badge, duration, facts, fit } from "./words.js";

const address = (name) => name.split("/").map(encodeURIComponent).join("/");

/**
 * @param {object} model of `/api/models`, with `served_as` and `state` of the server
 * @param {{reread: () => void, signal: AbortSignal}} page
 * @returns {{node, model, text, loaded, update}} `update(state)` shows a new state of the server
 */
export function modelCard(model, page) {
  const badges = el("div.badges", {});
  const state = el("div.state", { "aria-live": "polite" });
  const actions = el("div.row", { role: "group", "aria-label": model.display_name ?? model.id });
  const fault = el("div", { role: "alert" });
  const node = el("li.panel.model-card", {},
    el("div", {}, el("h3", {}, model.display_name ?? model.id), model.path === null ? null : el("p.path", {}, where(model))),
    badges, model.description ? el("p.dim.wrap", {}, model.description) : null, known(model), state, fault, actions);
  let drawn = "", told = ""; // what the buttons and the lines of the state show
  const card = {
    node, model, loaded: false,
    text: [model.name, model.id, model.family, model.alias, model.display_name].filter(Boolean).join(" ").toLowerCase(),
    update(now) {
      model.state = now;
      card.loaded = now?.loaded ?? false;
      node.classList.toggle("loaded", card.loaded);
      fill(badges, badgesOf(model, now));
      const lines = stateOf(model, now), words = lines.map((line) => line.textContent).join("\n");
      if (words !== told) fill(state, lines); // or it is read out again
      told = words;
      buttons(now);
    },
  };
  const onError = (error) => { fill(fault, el("p.error", {}, error.message)); };
  const run = (label, work, props = {}) => action(label, async () => { fill(fault); await work(); }, { onError, ...props });
  const post = (verb, body = {}) => api(`/v1/models/${address(model.served_as)}/${verb}`, { body });

  function buttons(now) {
    const key = JSON.stringify([now?.loaded, now?.is_loading, now?.pinned, now?.ttl_seconds, now?.active_requests]);
    if (key === drawn) return; // what somebody is about to press stays where it is
    drawn = key;
    const held = [...actions.querySelectorAll("button, a")].indexOf(document.activeElement); // its label may change
    fill(actions, model.kind === "target" ? served(now) : null,
      model.kind === "target" && !model.problem
        ? run("Settings", () => openSettings(model.name, { signal: page.signal, onSaved: page.reread })) : null,
      run("Details", () => openDetails(model, page)),
      model.source === "hub" ? run("Verify", () => verify(model, page)) : null,
      model.source === "hub" ? run("Remove…", remove, { class: "danger" }) : null);
    if (held >= 0) actions.querySelectorAll("button, a")[held]?.focus();
  }

  function served(now) {
    if (!model.served_as) {
      const reason = model.not_offered ?? model.problem ?? "it was started with other models";
      return el("span.dim.wrap", {}, `not offered by this server: ${reason}`);
    }
    return [
      now?.loaded
        ? run("Unload", async () => card.update(await post("unload")), { disabled: now.active_requests > 0 })
        : run(now?.is_loading ? "Loading…" : "Load", async () => card.update(await post("load")), { disabled: now?.is_loading }),
      run(now?.pinned ? "Unpin" : "Pin", async () => card.update(await post("settings", { pinned: !now?.pinned })),
        { "aria-pressed": String(Boolean(now?.pinned)), title: "A pinned model is not unloaded to make room" }),
      run("Idle limit…", limit),
      el("a.button.small", { href: `#/chat?model=${encodeURIComponent(model.served_as)}` }, "Chat with it"),
    ];
  }

  async function limit() {
    const given = await prompt("Idle limit", "Seconds without a request", {
      value: String(model.state?.ttl_seconds ?? ""), hint: "After so long the model is unloaded, as long as this server runs; 0 keeps it." });
    if (given === null) return;
    const seconds = Number(given);
    if (!Number.isFinite(seconds) || seconds < 0) throw new Error(`ttl_seconds: got ${given}, expected a number of seconds >= 0`);
    card.update(await post("settings", { ttl_seconds: seconds }));
  }

  async function remove() {
    const asked = await api(`/api/models/removal?name=${encodeURIComponent(model.name)}`);
    if (asked.in_use) throw new Error(`${model.name} ${asked.in_use}; it cannot be removed now`);
    const text = `${model.name} goes from the disk; ${fmt.bytes(asked.freed_bytes)} are free again. Its settings stay.`;
    if (!await confirm("Remove this model?", text, { yes: "Remove", danger: true })) return;
    const done = await api("/api/models/remove", { body: { name: model.name } });
    toast(`Removed ${model.name}: ${fmt.bytes(done.freed_bytes)} are free again.`);
    page.reread();
  }

  card.update(model.state);
  return card;
}

function where(model) {
  return model.source === "hub" ? model.name : model.path;
}

function known(model) {
  const chance = fit(model.memory);
  return facts([
    ["Family", model.family], ["Weights", model.kind === "other" ? null : model.quantization ?? (model.family ? "full" : null)],
    ["Size", model.size_bytes === null ? null : fmt.bytes(model.size_bytes)],
    ["Context", model.context_length ? `${fmt.count(model.context_length)} tokens` : null],
    ["Block size", model.block_size],
    ["Memory", chance ? el("span", { title: chance.title, class: `badge ${chance.kind}` }, chance.text) : null],
    ["Drafter", model.draft_model ?? (model.drafter
      ? `${model.drafter}${model.drafter_is_here ? "" : " (not here)"}, not switched on` : null)],
  ]);
}

function badgesOf(model, now) {
  return [
    now?.loaded ? badge("in memory", "good") : null,
    now?.is_loading ? badge("loading", "warn") : null,
    now?.pinned ? badge("pinned", "accent") : null,
    badge(KINDS[model.kind] ?? model.kind, model.kind === "other" ? "bad" : ""),
    model.source === "server" ? badge("of this server") : badge(model.source === "hub" ? "Hub cache" : "folder"),
    model.is_default ? badge("default", "accent") : null,
    model.alias ? badge(`alias ${model.alias}`) : null,
    model.is_hidden ? badge("hidden") : null,
    model.is_favorite ? badge("favorite", "accent") : null,
  ];
}

function stateOf(model, now) {
  const lines = [];
  if (model.problem) lines.push(el("p.error", {}, model.problem));
  if (now?.problem) lines.push(el("p.error", {}, `It could not be loaded: ${now.problem}`));
  if (now?.loaded) {
    const busy = now.active_requests ? `${now.active_requests} request(s) under way` : "idle";
    const limit = now.ttl_seconds ? `, unloaded after ${duration(now.ttl_seconds)} without a request` : "";
    lines.push(el("p", {}, now.dflash_active
      ? `DFlash is active${now.block_size ? `, block size ${now.block_size}` : ""}; ${busy}${limit}`
      : `Plain decoding; ${busy}${limit}`));
    if (!now.dflash_active && now.dflash_fallback_reason) {
      lines.push(el("p.warning", {}, `DFlash is not active: ${now.dflash_fallback_reason}`));
    }
  } else if (model.dflash_requested && model.dflash_fallback_reason) {
    lines.push(el("p.warning", {}, `DFlash will not be active: ${model.dflash_fallback_reason}`));
  }
  return lines;
}
