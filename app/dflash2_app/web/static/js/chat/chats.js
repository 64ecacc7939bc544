// Saved chats on the server, and what is remembered in this browser only: drafts and the model used last.
import { api } from "../api.js";

const at = (id) => `/api/chats/${encodeURIComponent(id)}`;

export const chats = {
  list: (search, signal) => api(`/api/chats?search=${encodeURIComponent(search)}`, { signal }).then((told) => told.chats),
  read: (id) => api(at(id)),
  create: (chat) => api("/api/chats", { body: { chat } }),
  save: (id, revision, chat) => api(at(id), { method: "PUT", body: { revision, chat } }),
  rename: (id, title, revision) => api(at(id), { method: "PATCH", body: { title, revision } }),
  remove: (id) => api(at(id), { method: "DELETE" }),
  export: (id, format) => api(`${at(id)}/export?format=${format}`),
};

export const models = {
  status: (signal) => api("/v1/models/status", { signal }).then((told) => told.models),
  about: (name) => api(`/api/chat-model/${name.split("/").map(encodeURIComponent).join("/")}`),
};

const MODEL = "dflash2.chat.model";
const draftKey = (id) => `dflash2.chat.draft.${id ?? "new"}`;

export const remembered = {
  get model() { return localStorage.getItem(MODEL); },
  set model(name) { localStorage.setItem(MODEL, name); },
  draft: (id) => localStorage.getItem(draftKey(id)) ?? "",
  keepDraft(id, text) {
    if (text) localStorage.setItem(draftKey(id), text);
    else localStorage.removeItem(draftKey(id));
  },
};

/** A chat nobody has written in. */
export function emptyChat(model) {
  const now = new Date().toISOString().replace(/\.\d+Z$/, "+00:00");
  return { version: 1, created_at: now, model, drafter: null, system: "", settings: {}, template: {}, server: {}, messages: [] };
}
