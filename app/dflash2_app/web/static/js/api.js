// The server's interfaces: JSON calls and event streams, errors as one readable line.
import { askForKey } from "./dialog.js";

const KEY = "dflash2.key"; // for this tab only

/** A refusal or failure; `message` is the server's own line, `status` 0 when it could not be reached. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

/** GET by default; a body makes it POST. Resolves to the JSON of the answer. */
export async function api(path, { method, body, signal } = {}) {
  const response = await send(path, { method: method ?? (body === undefined ? "GET" : "POST"), body, signal });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** GET what is no JSON, as text. */
export async function text(path, { signal } = {}) {
  return (await send(path, { method: "GET", signal })).text();
}

/**
 * POST and read the event stream of the answer.
 * @param {(data: any, event: string) => void} onEvent for each event; data is parsed JSON
 * @param {(text: string) => void} onComment for comments, such as "queue position 2"
 */
export async function stream(path, body, { signal, onEvent, onComment = () => {}, method = "POST" }) {
  const response = await send(path, { method, body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    held += value;
    const frames = held.split("\n\n");
    held = frames.pop();
    for (const frame of frames) readFrame(frame, onEvent, onComment);
  }
}

/** A stream that broke off, in words; one that was given up stays what it is. */
function lost(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError("the connection was lost: is the server still running?");
}

function readFrame(frame, onEvent, onComment) {
  let event = "message";
  const data = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith(":")) onComment(line.slice(1).trim());
    else if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  const text = data.join("\n");
  if (text && text !== "[DONE]") onEvent(JSON.parse(text), event);
}

async function send(path, { method, body, signal }) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server cannot be reached: is it still running?");
  }
  if (response.ok) return response;
  const refused = await problem(response);
  if (response.status === 401) {
    const given = await askForKey(key !== null);
    if (given) {
      sessionStorage.setItem(KEY, given);
      return send(path, { method, body, signal });
    }
  }
  throw refused;
}

async function problem(response) {
  const text = await response.text();
  try {
    const { message, code, param } = JSON.parse(text).error;
    return new ApiError(message, { status: response.status, code, param });
  } catch {
    return new ApiError(`the server answered ${response.status}`, { status: response.status });
  }
}
