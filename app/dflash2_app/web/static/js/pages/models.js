// The model manager: what is on this machine, what the Hub has, and the settings of each model.
import { el } from "../dom.js";
import { downloader } from "../models/downloader.js";
import { listen } from "../models/live.js";
import { manager } from "../models/manager.js";

export const title = "Models";

const TABS = [["manager", "Manager", "#/models"], ["downloader", "Downloader", "#/models?tab=downloader"]];

export function mount(root, { query, signal }) {
  const tab = query.get("tab") === "downloader" ? "downloader" : "manager";
  const count = el("span", {});
  root.append(
    el("h1", {}, title),
    el("nav.subtabs", { "aria-label": "Models" }, TABS.map(([name, label, href]) =>
      el("a", { href, "aria-current": name === tab ? "page" : null }, label, name === "downloader" ? count : null))));
  const place = el("div.stack", {});
  root.append(place);
  const part = tab === "downloader" ? downloader(place, { query, signal }) : manager(place, { query, signal });
  listen(signal, {
    models: (states) => part.models?.(states),
    downloads(tasks) {
      const going = tasks.filter((task) => task.state === "downloading" || task.state === "pending").length;
      count.textContent = going ? ` (${going})` : "";
      part.downloads?.(tasks);
    },
  });
}
