// How a reply went: one line, and more on demand.
import { el, fill, fmt } from "../dom.js";
import { barChart } from "../charts.js";

/** Why a reply, or a model, runs without drafting, in the words of the server's interface; null when it drafts. */
export function fallback({ mode, fallback_reason: reason } = {}) {
  if (mode !== "plain" && !reason) return null;
  return `DFlash not active${reason ? `: ${reason}` : ""}`;
}

/** The line under a reply. */
export function line(numbers) {
  const parts = [];
  if (has(numbers.generated_tokens)) parts.push(`${fmt.count(numbers.generated_tokens)} ${numbers.generated_tokens === 1 ? "token" : "tokens"}`);
  if (has(numbers.tokens_per_second)) parts.push(`${fmt.fixed(numbers.tokens_per_second)} tokens/s`);
  if (has(numbers.ttft_s)) parts.push(`first after ${fmt.seconds(numbers.ttft_s)}`);
  if (has(numbers.acceptance_length)) parts.push(`acceptance ${fmt.fixed(numbers.acceptance_length, 2)}`);
  return parts.join(" · ");
}

/** The line, folded out to a table and acceptance by position. */
export function details(numbers) {
  const more = el("div.more");
  const node = el("details.numbers", {}, el("summary", {}, line(numbers) || "Numbers"), more);
  node.addEventListener("toggle", () => { if (node.open) fill(more, table(numbers), chart(numbers)); });
  return node;
}

function has(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function table(numbers) {
  const n = numbers;
  const rows = [
    ["Model", n.model],
    ["Decoding", n.mode === "plain" ? fallback(n) : has(n.width) ? `DFlash 2, block size ${n.width}` : n.mode],
    ["Prompt", has(n.prompt_tokens) ? `${fmt.count(n.prompt_tokens)} tokens, ${fmt.count(n.cached_tokens ?? 0)} of them known already` : null],
    ["Thinking", n.reasoning_tokens ? `${fmt.count(n.reasoning_tokens)} tokens` : null],
    ["In line", has(n.queued_s) ? fmt.seconds(n.queued_s) : null],
    ["Reading the prompt", has(n.prefill_s) ? fmt.seconds(n.prefill_s) : null],
    ["Writing", has(n.decode_s) ? fmt.seconds(n.decode_s) : null],
    ["Rounds", has(n.rounds) ? fmt.count(n.rounds) : null],
    ["Seed", has(n.seed) ? String(n.seed) : null],
  ].filter(([, value]) => value);
  return el("dl.facts", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd.wrap", {}, value)]));
}

function chart({ acceptance_by_position: shares }) {
  if (!Array.isArray(shares) || !shares.some(has)) return null;
  const bars = shares.map((share, at) => ({ label: String(at + 1), value: has(share) ? share : null,
    text: has(share) ? String(Math.round(100 * share)) : "–" }));
  return el("figure", {}, el("figcaption.dim", {}, "Acceptance by position, in %"),
    barChart(bars, { title: "Acceptance by position, in percent", most: 1, height: 120 }));
}
