// The Draft Model: drafters of this machine, published ones, or any folder or Hub id.
import { el, uid } from "../dom.js";
import { wrapped } from "./fields.js";

const OTHER = "\u0000other";
const FITS = { good: "", bad: "does not fit", unknown: "not checked yet" };

export function draftModelField(key, value, { form, onChange }) {
  const typed = el("input", { type: "text", id: uid("drafter"), placeholder: "/path/to/drafter or owner/name", autocomplete: "off",
    spellcheck: "false" });
  const other = el("div.field", {}, el("label", { for: typed.id }, "Folder or Hub id"), typed);
  const input = el("select", {},
    el("option", { value: "" }, `Not set${value.inherited_text ? ` (${value.inherited_text})` : ""}`),
    group("On this machine", form.drafters.map((one) => [one.name, [one.label, FITS[one.state]].filter(Boolean).join(", ")])),
    group("Published for this model", form.suggested.filter((one) => !form.drafters.some((here) => here.name === one.name))
      .map((one) => [one.name, `${one.name} (${one.here ? "here" : "not here yet"})`])),
    el("option", { value: OTHER }, "Another folder or Hub id…"));
  const away = form.suggested.find((one) => !one.here);
  const extra = el("div.stack", {}, other, away
    ? el("a", { href: `#/models?tab=downloader&get=${encodeURIComponent(away.name)}` }, `Download ${away.name}`) : null);
  other.hidden = true;
  const control = {
    input, extra, full: true,
    write(text) {
      const listed = text === null || [...input.options].some((option) => option.value === text);
      input.value = listed ? text ?? "" : OTHER;
      other.hidden = listed;
      if (!listed) typed.value = text;
    },
    listen(told) {
      input.addEventListener("change", () => {
        other.hidden = input.value !== OTHER;
        told(input.value === OTHER ? typed.value.trim() : input.value);
        if (input.value === OTHER) typed.focus();
      });
      typed.addEventListener("input", () => told(typed.value.trim()));
    },
  };
  return wrapped(key, value, control, onChange);
}

function group(label, options) {
  return options.length ? el("optgroup", { label }, options.map(([name, text]) => el("option", { value: name }, text))) : null;
}
