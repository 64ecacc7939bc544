import { el } from "../dom.js";

export const title = "Bench";

export function mount(root) {
  root.append(el("h1", {}, title));
}
