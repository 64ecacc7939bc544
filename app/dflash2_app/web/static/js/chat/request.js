// One reply: from a chat to the server's request, and from its stream to a message and its numbers.
import { ApiError, stream } from "../api.js";

const DIRECT = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
  "seed", "max_tokens"];

/** The request for a reply to the chat's last message; settings that are not in the chat are the model's. */
export function requestOf(chat) {
  const { settings = {}, template = {}, server = {} } = chat;
  const body = { model: chat.model, messages: messagesOf(chat), stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const name of DIRECT) if (settings[name] !== undefined) body[name] = settings[name];
  const drafting = {};
  if (settings.block_size !== undefined) drafting.block_size = settings.block_size;
  if (settings.lossless_mode !== undefined) drafting.lossless_mode = settings.lossless_mode;
  if (settings.verify_mode === "off") drafting.mode = "plain";
  if (Object.keys(drafting).length) body.dflash2 = drafting;
  if (server.stop?.length) body.stop = server.stop;
  if (server.thinking_budget !== undefined) body.thinking_budget = server.thinking_budget;
  if (Object.keys(template).length) body.chat_template_kwargs = template;
  return body;
}

function messagesOf(chat) {
  const system = chat.system ? [{ role: "system", content: chat.system }] : [];
  return [...system, ...chat.messages.map(({ role, content, reasoning_content }) =>
    (reasoning_content ? { role, content, reasoning_content } : { role, content }))];
}

/**
 * Fill a message from the server's stream.
 * @param {object} message gets content, reasoning_content, numbers and finish_reason; `partial` goes at the end
 * @param {(state: string) => void} onState "waiting", "queue position 2", "running", "thinking", "answering"
 * @throws {ApiError} the reply failed; what came before is in the message
 */
export async function fillReply(body, message, { signal, onState, onPiece }) {
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  const times = {};
  onState("waiting");
  await stream("/v1/chat/completions", body, {
    signal,
    onComment(text) {
      if (text === "running" && times.waited) times.queued_s = since();
      else if (text.startsWith("queue")) times.waited = true;
      onState(text);
    },
    onEvent(data) {
      if (data.error) throw new ApiError(data.error.message, { code: data.error.code, param: data.error.param });
      const choice = data.choices[0];
      const { content = "", reasoning_content: thinking = "" } = choice?.delta ?? {};
      if (content || thinking) times.ttft_s ??= since();
      message.content += content;
      message.reasoning_content += thinking;
      if (data.usage) message.numbers = numbersOf(data.usage, times, body.model);
      if (choice?.finish_reason) {
        message.finish_reason = choice.finish_reason;
        message.partial = false;
      }
      if (content || thinking) {
        onState(content ? "answering" : "thinking");
        onPiece();
      }
    },
  });
  if (message.partial) throw new ApiError("the connection ended before the reply did");
}

function numbersOf(usage, { ttft_s, queued_s }, model) {
  const { mode, fallback_reason, rounds, acceptance_length, acceptance_by_position, width, prefill_s, decode_s,
    tokens_per_second, seed, notices } = usage.dflash2;
  const numbers = { model, ttft_s, queued_s, prompt_tokens: usage.prompt_tokens,
    cached_tokens: usage.prompt_tokens_details.cached_tokens, generated_tokens: usage.completion_tokens,
    reasoning_tokens: usage.completion_tokens_details.reasoning_tokens, tokens_per_second, mode, fallback_reason, rounds,
    acceptance_length, acceptance_by_position, width, prefill_s, decode_s, seed, notices };
  return Object.fromEntries(Object.entries(numbers).filter(([, value]) => value !== undefined));
}
