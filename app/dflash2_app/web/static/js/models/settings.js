// The settings window of one model, in oMLX's words and groups. What is changed is checked by the server as one types.
import { api } from "../api.js";
import { confirm, toast } from "../dialog.js";
import { el, fill } from "../dom.js";
import { askBeforeLeaving } from "../leaving.js";
import { draftModelField } from "./draft_model.js";
import { settingField } from "./fields.js";
import { profilesPanel } from "./profiles.js";
import { action } from "./words.js";

const CHECK_MS = 250;
const DRAFT = "dflash_draft_model";
const DRAFTING = new Set(["Draft quantization", "Prefix cache", "Long-context tuning"]);
const PAIR = { good: "success", bad: "error", unknown: "note", none: "dim" };
let schema = null;

/** Open the window; resolves when it is closed. */
export async function openSettings(name, { signal, onSaved = () => {} }) {
  schema ??= (await api("/api/settings/schema", { signal })).groups;
  const form = await api(`/api/settings/model?name=${encodeURIComponent(name)}`, { signal });
  return new Promise((resolve) => { new Window(name, form, { signal, onSaved, onClosed: resolve }).open(); });
}

class Window {
  constructor(name, form, { signal, onSaved, onClosed }) {
    Object.assign(this, { name, form, signal, onSaved, onClosed, fields: new Map(), checks: 0, timer: 0, good: true });
  }

  open() {
    this.verdict = el("div.stack", { "aria-live": "polite" });
    this.notes = el("div", { "aria-live": "polite" });
    this.fault = el("div", { role: "alert" });
    this.body = el("div.settings-body", {});
    this.saveButton = action("Save", () => this.save(), { class: "primary", onError: (error) => this.fail(error) });
    this.saveButton.classList.remove("small");
    this.undo = el("button", { type: "button", onclick: () => this.show(this.form) }, "Undo changes");
    this.node = el("dialog.settings", { "aria-label": `Settings of ${this.form.model}` },
      el("h2", {}, `Settings of ${this.form.model}`),
      el("div.settings-head", {}, this.verdict,
        el("div.row", {}, action("Use the announcement's setup", () => this.preset(), {
          title: "DFlash on, the published drafter, 4-bit quantization, Runtime block size 5, Verify mode dflash",
          onError: (error) => this.fail(error) }))),
      this.body,
      el("div.settings-foot.stack", {}, this.fault, this.notes, el("div.row.actions", {}, this.undo,
        el("button", { type: "button", onclick: () => this.leave() }, "Close"), this.saveButton)));
    this.node.addEventListener("cancel", (event) => { event.preventDefault(); this.leave(); });
    this.node.addEventListener("close", () => this.closed());
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && event.target.closest("dialog") === this.node) { event.preventDefault(); this.leave(); }
      if (event.key === "Enter" && event.target.matches("input:not([type=checkbox])")) {
        event.preventDefault();
        if (!this.saveButton.disabled) this.saveButton.click();
      }
    });
    this.guard = (event) => { if (this.dirty) event.preventDefault(); };
    this.stay = askBeforeLeaving(() => this.mayClose());
    addEventListener("beforeunload", this.guard);
    this.signal.addEventListener("abort", () => this.node.close());
    document.body.append(this.node);
    this.show(this.form);
    this.node.showModal();
  }

  /** Build all fields anew from a form of the server. */
  show(form) {
    this.form = form;
    this.fields.clear();
    fill(this.fault);
    const opened = new Map([...this.body.querySelectorAll("details")].map((one) => [one.dataset.group, one.open]));
    fill(this.body, schema.map(({ group, keys }) => this.group(group, keys, opened.get(group))),
      profilesPanel(this.name, form, {
        open: opened.get("Profiles"), dirty: () => this.dirty,
        onChanged: (answer) => { this.show(answer.settings); this.tell(answer); this.onSaved(); },
      }), this.kept(form));
    this.changed();
  }

  group(title, keys, open) {
    const on = this.form.values.dflash_enabled.value === true;
    const node = el("details.group", { dataset: { group: title }, open: open ?? (!DRAFTING.has(title) || on) },
      el("summary", {}, title));
    const place = el("div.fields", {});
    for (const key of keys) {
      const made = (key.name === DRAFT ? draftModelField : settingField)(key, this.form.values[key.name], {
        form: this.form, onChange: () => this.changed() });
      this.fields.set(key.name, made);
      place.append(made.node);
    }
    node.append(place);
    return node;
  }

  kept(form) {
    const names = Object.entries(form.kept);
    if (!names.length) return null;
    return el("details.group", { dataset: { group: "kept" } }, el("summary", {}, "Kept for other programs, without effect here"),
      el("ul", {}, names.map(([name, value]) => el("li.wrap", {}, `${name}: ${JSON.stringify(value)}`))));
  }

  get values() {
    const changed = {};
    for (const [name, field] of this.fields) if (field.changed) changed[name] = field.current;
    return changed;
  }

  get dirty() {
    return Object.keys(this.values).length > 0;
  }

  changed() {
    const dirty = this.dirty;
    this.undo.disabled = !dirty;
    this.saveButton.disabled = true;
    clearTimeout(this.timer);
    if (!dirty) {
      this.checks += 1;
      for (const field of this.fields.values()) field.setFault("");
      this.judge(this.form, [...this.form.notes, ...this.form.problems.map((problem) => `not used: ${problem}`)]);
      return;
    }
    this.timer = setTimeout(() => this.check().catch((error) => this.fail(error)), CHECK_MS);
  }

  async check() {
    const number = (this.checks += 1);
    const answer = await api("/api/settings/check", { body: { model: this.name, values: this.values }, signal: this.signal });
    if (number !== this.checks) return; // something else was typed meanwhile
    fill(this.fault);
    for (const [name, field] of this.fields) field.setFault(answer.faults[name] ?? "");
    const rest = Object.entries(answer.faults).filter(([name]) => !this.fields.has(name));
    if (rest.length) fill(this.fault, rest.map(([name, text]) => el("p.error", {}, name ? `${name}: ${text}` : text)));
    this.saveButton.disabled = !answer.ok;
    this.judge(answer, answer.notes, answer.requires_reload);
  }

  /** Say what the settings lead to, in the words of the server. */
  judge(answer, notes, reload = false) {
    const pair = answer.pairing;
    fill(this.verdict,
      answer.dflash_requested
        ? answer.dflash_fallback_reason
          ? el("p.warning", {}, `DFlash will not be active: ${answer.dflash_fallback_reason}`)
          : el("p.success", {}, `Replies are drafted by ${answer.drafter}`)
        : el("p.note", {}, "DFlash is off: replies are decoded plainly"),
      pair.state === "none" ? null : el(`p.${PAIR[pair.state]}`, {}, `Target and drafter: ${pair.text}`),
      pair.licence_note ? el("p.warning", {}, pair.licence_note) : null,
      reload ? el("p.note", {}, "These changes take effect when the model is loaded the next time.") : null);
    fill(this.notes, notes.length ? el("ul", {}, [...new Set(notes)].map((note) => el("li.wrap", {}, note))) : null);
  }

  async preset() {
    const chosen = this.fields.get(DRAFT).current;
    const body = { model: this.name, preset: "dflash2" };
    if (chosen !== null && !this.form.suggested.length) body.drafter = chosen;
    const { values, notes } = await api("/api/settings/preset", { body, signal: this.signal });
    for (const [name, value] of Object.entries(values)) this.fields.get(name)?.set(value);
    for (const part of this.body.querySelectorAll("details")) if (DRAFTING.has(part.dataset.group)) part.open = true;
    this.changed();
    toast(["The announcement's setup is filled in; Save keeps it.", ...notes].join(" "));
  }

  async save() {
    const answer = await api("/api/settings/save", { body: { model: this.name, values: this.values } });
    this.show(answer.settings);
    this.tell(answer);
    this.onSaved();
  }

  tell(answer) {
    toast(["Saved.", answer.auto_unloaded ? "The model was unloaded; the next request loads it with the new settings."
      : answer.requires_reload ? "It takes effect when the model is loaded the next time." : ""].join(" ").trim());
    if (answer.notes) this.judge(this.form, answer.notes, answer.requires_reload && !answer.auto_unloaded);
  }

  fail(error) {
    if (error.name === "AbortError") return;
    if (error.param && this.fields.has(error.param)) {
      this.fields.get(error.param).setFault(error.message.replace(`${error.param}: `, ""));
    } else fill(this.fault, el("p.error", {}, error.message));
  }

  async mayClose() {
    return !this.dirty
      || confirm("Close without saving?", "The changes in this window are lost.", { yes: "Lose them", danger: true });
  }

  async leave() {
    if (await this.mayClose()) this.node.close();
  }

  closed() {
    clearTimeout(this.timer);
    removeEventListener("beforeunload", this.guard);
    this.stay();
    this.node.remove();
    this.onClosed();
  }
}
