import { el } from "../dom.js";

export const title = "Models";

export function mount(root) {
  root.append(el("h1", {}, title));
}
