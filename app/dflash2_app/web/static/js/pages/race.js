import { el } from "../dom.js";

export const title = "Side by side";

export function mount(root) {
  root.append(el("h1", {}, title));
}
