// Named sets of settings of a model: saved, applied, renamed, deleted, offered as models of their own.
import { api } from "../api.js";
import { confirm, prompt } from "../dialog.js";
import { el, fill } from "../dom.js";
import { action, badge } from "./words.js";

const NAME_HINT = "At most 32 of a-z, 0-9, _ and -, beginning with a letter or digit.";

/**
 * The group "Profiles" of the settings window.
 * @param {string} name of the model
 * @param {object} form of the server
 */
export function profilesPanel(name, form, { open = false, dirty, onChanged }) {
  const fault = el("div", { role: "alert" });
  const onError = (error) => fill(fault, el("p.error", {}, error.message));
  const ask = async (verb, body) => {
    fill(fault);
    onChanged(await api(`/api/settings/profiles/${verb}`, { body: { model: name, ...body } }));
  };
  const run = (label, work, props = {}) => action(label, work, { onError, ...props });

  async function keep() {
    if (dirty()) throw new Error("save the changes first: a profile holds what is saved");
    const given = await prompt("Keep these settings as a profile", "Name", { hint: NAME_HINT });
    if (given) await ask("save", { name: given });
  }

  async function apply(profile) {
    const lost = dirty() ? "The changes in this window are lost. " : "";
    if (lost && !await confirm(`Apply ${profile.name}?`, `${lost}The model gets the profile's settings.`, { yes: "Apply" })) return;
    await ask("apply", { name: profile.name });
  }

  async function rename(profile) {
    const given = await prompt("Rename the profile", "Name", { value: profile.name, hint: NAME_HINT });
    if (given && given !== profile.name) await ask("rename", { name: profile.name, new_name: given });
  }

  async function expose(profile) {
    if (profile.exposed) return ask("expose", { name: profile.name, exposed: false });
    const given = await prompt("Offer the profile as a model", "Name behind the colon", {
      value: profile.api_name, yes: "Offer", hint: `Requests name it ${profile.served_as}. ${NAME_HINT}` });
    return given ? ask("expose", { name: profile.name, exposed: true, api_name: given }) : undefined;
  }

  async function remove(profile) {
    if (await confirm(`Delete ${profile.name}?`, "The model keeps its settings.", { yes: "Delete", danger: true })) {
      await ask("remove", { name: profile.name });
    }
  }

  return el("details.group", { dataset: { group: "Profiles" }, open }, el("summary", {}, `Profiles (${form.profiles.length})`),
    el("div.fields", {}, el("div.full", {},
      form.profiles.length ? null : el("p.dim", {}, "No profiles yet: keep the present settings under a name, and go back to them later."),
      form.profiles.map((profile) => el("div.profile", {},
        el("div.row", {}, el("strong.wrap", {}, profile.display_name),
          profile.name === form.active_profile ? badge(form.profile_modified ? "active, modified" : "active", "accent") : null,
          profile.exposed ? badge(`offered as ${profile.served_as}`, "good") : null),
        el("p.dim.wrap", {}, profile.values.map((one) => `${one.label} ${one.text}`).join(" · ") || "holds nothing: all defaults"),
        el("div.row", {},
          run("Apply", () => apply(profile), { "aria-label": `Apply ${profile.name}` }),
          run("Rename…", () => rename(profile), { "aria-label": `Rename ${profile.name}` }),
          run(profile.exposed ? "Offer no longer" : "Offer as a model…", () => expose(profile)),
          run("Delete…", () => remove(profile), { class: "danger", "aria-label": `Delete ${profile.name}` })))),
      fault, el("p", {}, run("Keep as a profile…", keep)))));
}
