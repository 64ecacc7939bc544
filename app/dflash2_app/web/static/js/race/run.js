// Runs a race on the server and tells of every step.
import { ApiError, stream } from "../api.js";
import { TITLES, newRecord, take } from "./record.js";

/**
 * @param {object} order body of POST /api/race
 * @param {{signal: AbortSignal, onState: (text: string) => void, onUpdate: (record: object, event: string, data: object) => void}} to
 * @returns {Promise<object>} the finished record
 */
export async function runRace(order, { signal, onState, onUpdate }) {
  let record = null, refused = null;
  onState("Loading and checking…");
  await stream("/api/race", order, {
    signal,
    onComment: (text) => {
      if (text.startsWith("queue position")) onState(`Waiting in line: ${text}`);
    },
    onEvent: (data, event) => {
      if (event === "error") refused = new ApiError(data.error.message, data.error);
      else if (event === "run") record = newRecord(data);
      else if (event === "warm_up") onState(`Warming up, not measured: ${TITLES[data.lane]}, ${data.tokens} tokens`);
      else if (event === "prefill") onState(`${TITLES[data.lane]} reads the prompt: ${data.done} of ${data.total} tokens`);
      if (record && event !== "error") {
        take(record, event, data);
        onUpdate(record, event, data);
      }
    },
  });
  if (refused) throw refused;
  if (!record?.verdict) throw new ApiError("The race ended before its verdict: the server has stopped.");
  return record;
}
