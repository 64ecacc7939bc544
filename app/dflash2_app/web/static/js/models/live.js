// What changes on the server while the page is open: states of models and downloads, over one connection.
import { stream } from "../api.js";
import { banner } from "../dialog.js";

const AGAIN_MS = 2000;

/**
 * Listen until `signal` is aborted; a lost connection is tried again, and the banner says so meanwhile.
 * @param {{models?: (states: object[]) => void, downloads?: (tasks: object[]) => void}} listeners
 */
export async function listen(signal, listeners) {
  let lost = false;
  while (!signal.aborted) {
    try {
      await stream("/api/models/events", undefined, {
        method: "GET",
        signal,
        onEvent(data, event) {
          if (lost) banner("");
          lost = false;
          if (event === "models") listeners.models?.(data.models);
          if (event === "downloads") listeners.downloads?.(data.tasks);
        },
      });
    } catch (error) {
      if (signal.aborted) break;
      lost = true;
      banner(`What is shown may be old: ${error.message}`);
    }
    if (!signal.aborted) await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
  }
  if (lost) banner("");
}
