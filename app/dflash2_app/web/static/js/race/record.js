// One race as data: put together from the server's events, saved as a file, read back, and put into words.

export const SCHEMA = "dflash2-race";
export const VERSION = 1;
export const MODES = ["plain", "dflash2"];
export const TITLES = { plain: "Plain decoding", dflash2: "DFlash 2" };
const ABOUT_EQUAL = 0.03; // shares of speed that a single run cannot tell apart
const NEAR_TIE = 0.05; // a logit gap that rounding can turn

/** A record from the first event of a race. */
export function newRecord(head) {
  const { schema, version, ...run } = head;
  return { schema, version, run, lanes: { plain: newLane(), dflash2: newLane() }, verdict: null };
}

function newLane() {
  return { rounds: [], stats: null, others: 0 };
}

/** Add one event of the race. */
export function take(record, event, data) {
  if (event === "round") {
    const { lane, ...round } = data;
    record.lanes[lane].rounds.push(round);
  } else if (event === "lane_end") {
    record.lanes[data.lane].stats = data.stats;
    record.lanes[data.lane].others = data.others;
  } else if (event === "verdict") record.verdict = data;
}

/** Read a saved race; an Error's message is one line for people. */
export function parseRecord(text) {
  let record;
  try {
    record = JSON.parse(text);
  } catch {
    throw new Error("This file holds no JSON; expected a race saved by this page.");
  }
  if (record?.schema !== SCHEMA) throw new Error(`schema: got ${shown(record?.schema)}, expected "${SCHEMA}".`);
  if (record.version !== VERSION) throw new Error(`version: got ${shown(record.version)}, expected ${VERSION}.`);
  need(typeof record.run?.id === "string" && /^[0-9a-f]{1,64}$/.test(record.run.id), "run.id", record.run?.id, "hex digits");
  for (const name of ["created", "target", "subject"]) {
    need(typeof record.run[name] === "string", `run.${name}`, record.run[name], "text");
  }
  need(typeof record.run.request?.prompt === "string", "run.request.prompt", record.run.request?.prompt, "text");
  for (const mode of MODES) checkLane(record.lanes?.[mode], `lanes.${mode}`);
  const verdict = record.verdict;
  need(typeof verdict?.identical === "boolean", "verdict.identical", verdict?.identical, "true or false");
  need(verdict.speedup === null || number(verdict.speedup), "verdict.speedup", verdict.speedup, "a number or null");
  need(Array.isArray(verdict.notes) && verdict.notes.every((note) => typeof note === "string"),
    "verdict.notes", verdict.notes, "a list of texts");
  return record;
}

function checkLane(lane, name) {
  need(Array.isArray(lane?.rounds) && lane.rounds.length > 0, `${name}.rounds`, lane?.rounds, "a list of rounds");
  checkStats(lane.stats, `${name}.stats`);
  need(lane.others === undefined || Number.isInteger(lane.others), `${name}.others`, lane.others, "a count");
  let before = 0;
  lane.rounds.forEach((round, at) => {
    need(number(round?.t) && round.t >= before, `${name}.rounds[${at}].t`, round?.t, "seconds that do not fall");
    before = round.t;
    const good = Array.isArray(round.tokens) && round.tokens.every((token) =>
      Array.isArray(token) && (token[0] === null || Number.isInteger(token[0])) && typeof token[1] === "string");
    need(good, `${name}.rounds[${at}].tokens`, round.tokens, "a list of [id, text]");
    need(round.num_accepted === null || Number.isInteger(round.num_accepted), `${name}.rounds[${at}].num_accepted`,
      round.num_accepted, "a count or null");
    need(Number.isInteger(round.committed), `${name}.rounds[${at}].committed`, round.committed, "a count");
    need(round.proposal === null || (Array.isArray(round.proposal) && round.proposal.every(Number.isInteger)),
      `${name}.rounds[${at}].proposal`, round.proposal, "a list of token ids or null");
  });
}

function checkStats(stats, name) {
  need(stats && typeof stats === "object", name, stats, "an object");
  for (const key of ["decode_s", "prefill_s", "generated_tokens", "rounds", "drafted_tokens", "accepted_tokens", "prompt_tokens",
    "peak_memory_bytes"]) need(number(stats[key]), `${name}.${key}`, stats[key], "a number");
  for (const key of ["tokens_per_second", "acceptance_length"]) {
    need(stats[key] === null || number(stats[key]), `${name}.${key}`, stats[key], "a number or null");
  }
  const shares = stats.acceptance_by_position;
  need(Array.isArray(shares) && shares.every((share) => share === null || number(share)), `${name}.acceptance_by_position`, shares,
    "a list of shares");
  need(Array.isArray(stats.notices) && stats.notices.every((text) => typeof text === "string"), `${name}.notices`, stats.notices,
    "a list of texts");
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function need(fine, name, got, expected) {
  if (!fine) throw new Error(`${name}: got ${shown(got)}, expected ${expected}.`);
}

function shown(value) {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

/** How the n-th token of a round came to be: "first", "plain", "accepted" or "bonus". */
export function kindOf(mode, round, at) {
  if (round.num_accepted === null) return "first";
  if (mode === "plain") return "plain";
  return at < round.num_accepted ? "accepted" : "bonus";
}

/** The reply's text. */
export function textOf(lane) {
  return lane.rounds.map((round) => round.tokens.map((token) => token[1]).join("")).join("");
}

/** Seconds from a lane's first token to its last. */
export function lengthOf(lane) {
  return lane.rounds.at(-1)?.t ?? 0;
}

/** Rounds that had landed at a time. */
export function landedAt(lane, time) {
  let low = 0, high = lane.rounds.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.rounds[middle].t <= time + 1e-9) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Figures of a lane at a time: {tokens, elapsed, speed, acceptance, done}. */
export function figuresAt(lane, time) {
  const landed = landedAt(lane, time);
  const done = landed === lane.rounds.length && lane.stats !== null;
  const elapsed = Math.min(time, lengthOf(lane));
  if (done) {
    const { generated_tokens: tokens, tokens_per_second: speed, acceptance_length: acceptance } = lane.stats;
    return { tokens, elapsed: lane.stats.decode_s, speed, acceptance, done };
  }
  const shownRounds = lane.rounds.slice(0, landed);
  const tokens = shownRounds.reduce((sum, round) => sum + round.committed, 0);
  const passes = shownRounds.filter((round) => round.num_accepted !== null);
  const committed = passes.reduce((sum, round) => sum + round.committed, 0);
  return {
    tokens, elapsed, done,
    speed: elapsed > 0 && tokens > 1 ? (tokens - 1) / elapsed : null,
    acceptance: passes.length ? committed / passes.length : null,
  };
}

/** Points (seconds, tokens) of a lane, for a chart. */
export function curveOf(lane) {
  let tokens = 0;
  return lane.rounds.map((round) => [round.t, (tokens += round.committed)]);
}

/** The tokens before a round of the DFlash 2 lane; the last one is the block's anchor. */
export function tokensBefore(record, at) {
  return record.lanes.dflash2.rounds.slice(0, at).flatMap((round) => round.tokens.map((token) => token[0]))
    .filter((id) => id !== null);
}

/** What came of a race, in words: {speed, tone, sentence, verdict, verdictTone, warnings}. */
export function words(record) {
  const { plain, dflash2 } = record.lanes, { speedup, identical } = record.verdict;
  const drafted = dflash2.stats.mode === "dflash2";
  let speed = "no speed", tone = "dim", sentence = "One token alone has no speed: nothing to compare.";
  if (!drafted) {
    speed = "not drafted";
    sentence = `The second run was not drafted: ${dflash2.stats.fallback_reason}`;
  } else if (speedup !== null) {
    speed = `${speedup.toFixed(2)}×`;
    if (speedup > 1 + ABOUT_EQUAL) [tone, sentence] = ["good", `DFlash 2 decoded ${speedup.toFixed(2)} times as fast.`];
    else if (speedup >= 1 - ABOUT_EQUAL) sentence = "DFlash 2 was about as fast as plain decoding.";
    else [tone, sentence] = ["bad", `DFlash 2 was slower: ${slower(dflash2.stats, plain.stats)}`];
  }
  return { speed, tone, sentence, ...verdictWords(record), identical, warnings: warningsOf(record) };
}

function slower(dflash2, plain) {
  const round = (dflash2.decode_s / Math.max(dflash2.rounds, 1)) / (plain.decode_s / Math.max(plain.generated_tokens - 1, 1));
  return `a round took as long as ${round.toFixed(1)} plain tokens and brought ${(dflash2.acceptance_length ?? 1).toFixed(2)}.`;
}

function verdictWords(record) {
  const { verdict, lanes, run } = record;
  if (verdict.identical) {
    return { verdict: `Identical: all ${lanes.plain.stats.generated_tokens} tokens are equal.`, verdictTone: "good" };
  }
  const gap = verdict.first_difference?.logit_gap ?? null;
  let why = "";
  if (gap !== null && run.sampling?.greedy !== false) {
    why = Math.abs(gap) <= NEAR_TIE ? " That is a near-tie: rounding decided between two equally good tokens."
      : " That is more than rounding explains: a fault, please report it with this race's JSON.";
  }
  return { verdict: `Different ${verdict.difference}.${why}`, verdictTone: gap !== null && Math.abs(gap) <= NEAR_TIE ? "warn" : "bad" };
}

function warningsOf(record) {
  const found = [];
  for (const mode of MODES) {
    const others = record.lanes[mode].others;
    if (others) {
      found.push(`${TITLES[mode]}: up to ${others} other ${others === 1 ? "reply" : "replies"} shared the machine, so its time says little.`);
    }
  }
  return found;
}

/** A short name for lists. */
export function nameOf(record) {
  const prompt = record.run.request.prompt.replace(/\s+/g, " ").trim();
  return prompt.length > 70 ? `${prompt.slice(0, 70)}…` : prompt;
}

/** The day and minute of a race, as people here write it. */
export function dateOf(record) {
  const date = new Date(record.run.created);
  return Number.isNaN(date.getTime()) ? record.run.created : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}
