"""Lets the target answer the prompts itself, many at a time: a drafter learns best from its target's own words.

Owns: batched plain decoding of prompts of different lengths, and the file of replies, from which an interrupted run
goes on. A reply depends on its prompt, the settings and its stream alone: not on what it shared a batch with (to float
rounding), and not on interruptions.

Reference: DFlash 2 specification 7.1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..config import GREEDY_TEMPERATURE
from ..errors import ConfigError, PromptError
from ..load import Engine
from ..rng import Purpose, base_keys, gumbel
from ..runtime import owner
from ..targets.base import Target
from ..targets.caches import TargetState
from ..values import check_integer, check_number
from .data import Item, prompt_of_turn, turns_to_answer
from .settings import Document

_CHUNK = 256  # prompt rows of a pass


@dataclass(frozen=True)
class ReplySettings:
    """How replies are made; `temperature` 0 takes the likeliest token. `batch` prompts are answered at a time.

    Of a text, the first `prompt_tokens` tokens are the prompt; None takes half of each piece of `max_length` tokens.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    batch: int = 16
    prompt_tokens: int | None = None
    max_length: int = 2048

    def __post_init__(self) -> None:
        for name, low in (("max_tokens", 1), ("seed", 0), ("batch", 1), ("max_length", 2)):
            check_integer(name, getattr(self, name), low)
        if self.prompt_tokens is not None:
            check_integer("prompt_tokens", self.prompt_tokens, 1)
        check_number("temperature", self.temperature, least=0.0)


@dataclass(frozen=True)
class Reply:
    """What the target said to prompt `index`: its tokens, the stop token among them if it came."""

    index: int
    tokens: list[int]


def batch_replies(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: ReplySettings,
    *,
    streams: Sequence[int] | None = None,
) -> Iterator[Reply]:
    """Answer prompts of token ids by plain decoding, those of similar length together.

    Args:
        streams: where the random numbers of each prompt come from; their places in the list when left out.
    Returns:
        replies as they are done, not in order
    Raises:
        PromptError: a prompt is empty or leaves no room in the target's context.
    """
    context = engine.context_length
    for number, prompt in enumerate(prompts):
        if not len(prompt) or (context is not None and len(prompt) >= context):
            raise PromptError(f"prompt {number}: got {len(prompt)} tokens, expected 1..{(context or 0) - 1 or 'any'}")
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    for first in range(0, len(order), settings.batch):
        group = order[first : first + settings.batch]
        chosen = [prompts[number] for number in group]
        seeds = [number if streams is None else streams[number] for number in group]
        limits = [
            settings.max_tokens if context is None else min(settings.max_tokens, context - len(prompt))
            for prompt in chosen
        ]
        answers = owner().call(partial(_answer, engine.target, chosen, limits, engine.stop_token_ids, settings, seeds))
        for number, tokens in zip(group, answers, strict=True):
            yield Reply(number, tokens)


def _answer(
    target: Target,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    stops: frozenset[int],
    settings: ReplySettings,
    streams: Sequence[int],
) -> list[list[int]]:
    """One batch, on the owner thread; a row that is done decodes on unheard until all are."""
    state = target.new_state(len(prompts))
    _prefill(target, state, prompts)
    draw = _Draw(settings, streams)
    positions = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    last = mx.array([prompt[-1] for prompt in prompts], dtype=mx.int32)
    answers: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    while open_rows:
        logits = target.forward(last[:, None], state, last_only=True).logits[:, 0]
        target.commit(state, 1)
        state.settle(1, 1, int(positions.min()) - 1)
        last = draw(logits, positions)
        positions += 1
        tokens: Any = last.tolist()
        for row in list(open_rows):
            answers[row].append(tokens[row])
            if tokens[row] in stops or len(answers[row]) == limits[row]:
                open_rows.remove(row)
    return answers


def _prefill(target: Target, state: TargetState, prompts: Sequence[Sequence[int]]) -> None:
    """All but each prompt's last token; a pass goes over rows of padding, which are then as if never seen."""
    lengths = np.array([len(prompt) - 1 for prompt in prompts], dtype=np.int32)
    for start in range(0, int(lengths.max()), _CHUNK):
        rows = min(_CHUNK, int(lengths.max()) - start)
        ids = np.zeros((len(prompts), rows), dtype=np.int32)
        keep = np.clip(lengths - start, 0, rows)
        for row, prompt, count in zip(ids, prompts, keep, strict=True):
            row[:count] = prompt[start : start + count]
        target.forward(mx.array(ids), state, last_only=True)
        target.commit(state, mx.array(keep))
        state.settle(rows, int(keep.max()), int(np.minimum(lengths, start).min()))
        mx.eval(state.arrays())


class _Draw:
    """Picks the next token of each row; noise depends on seed, stream and position alone."""

    def __init__(self, settings: ReplySettings, streams: Sequence[int]):
        self.temperature = settings.temperature
        self.keys = [] if self.greedy else [base_keys(_seed(settings.seed, stream)) for stream in streams]

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def __call__(self, logits: mx.array, positions: np.ndarray) -> mx.array:
        """Shapes: logits [B, V]; positions [B] int32 -> [B] int32."""
        scores = logits.astype(mx.float32)
        if not self.greedy:
            noise = [
                gumbel(keys, Purpose.TARGET, mx.array([position]), logits.shape[-1])[0]
                for keys, position in zip(self.keys, positions.tolist(), strict=True)
            ]
            scores = scores / self.temperature + mx.stack(noise)
        return mx.argmax(scores, axis=-1).astype(mx.int32)


def _seed(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0])


# The file of replies.


@dataclass(frozen=True)
class RegenerateEvent:
    """`done` of `total` replies are in the file; `found` of them were there before this run."""

    done: int
    total: int
    found: int


def regenerate(engine: Engine, items: Sequence[Item], file: Path, settings: ReplySettings) -> Iterator[RegenerateEvent]:
    """Write the target's replies to a JSONL file: every assistant turn of a chat in order, and one
    more where it ends with a question; the rest of a text.

    The first line says what the file was made with; every other one holds `item`, `turn`, `prompt` (its tokens'
    count), `tokens` (prompt and reply) and `text` (the reply). What the file already holds is not made again.

    Raises:
        ConfigError: the file was made with another target, other prompts or settings, named.
        PromptError: a prompt does not fit the target.
    """
    found = _open(file, _made_with(engine, items, settings))
    turns = [_turns(engine, item, settings) for item in items]
    total, before = sum(turns), len(found)
    with file.open("a", encoding="utf-8") as lines:
        for turn in range(max(turns, default=0)):
            waiting = [number for number, count in enumerate(turns) if turn < count and (number, turn) not in found]
            prompts = [_prompt(engine, items[number], number, turn, found, settings) for number in waiting]
            # Streams are numbered by what is asked, so that a draw does not depend on what was there already.
            streams = [(number << 16) + turn for number in waiting]
            for reply in batch_replies(engine, prompts, settings, streams=streams):
                number, prompt = waiting[reply.index], prompts[reply.index]
                said = reply.tokens[:-1] if reply.tokens[-1] in engine.stop_token_ids else reply.tokens
                line = {
                    "item": number, "turn": turn, "prompt": len(prompt), "tokens": [*prompt, *reply.tokens],
                    "text": engine.tokenizer.decode(said),
                }  # fmt: skip
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                lines.flush()
                found[number, turn] = line
                yield RegenerateEvent(len(found), total, before)
    if before == total:
        yield RegenerateEvent(total, total, before)


def read_regenerated(file: Path, *, max_length: int) -> list[Document]:
    """Documents of a file that `regenerate` finished; the replies are what is learned."""
    documents = []
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        reply = json.loads(line)
        tokens = np.array(reply["tokens"], dtype=np.int32)[:max_length]
        documents.append(Document(tokens, np.arange(len(tokens)) >= reply["prompt"]))
    return documents


def _made_with(engine: Engine, items: Sequence[Item], settings: ReplySettings) -> dict[str, Any]:
    made = asdict(settings)
    made.pop("batch")  # how fast, not what
    config = json.dumps(engine.target_config, sort_keys=True, default=str)
    prompts = json.dumps([item.content for item in items], sort_keys=True)
    return {"target": engine.target_name, "target_config": _short(config), "prompts": _short(prompts), **made}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _open(file: Path, made: Mapping[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    """What a file already holds; a line that was being written when its run ended is cut off."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made) + "\n", encoding="utf-8")
        return {}
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    try:
        first, *rest = [json.loads(line) for line in whole.splitlines()]
        found = {(int(line["item"]), int(line["turn"])): line for line in rest}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{file}: got an unreadable line, expected the replies of an earlier run") from None
    for name, value in made.items():
        if first.get(name) != value:
            raise ConfigError(f"{file}: got {name} {value!r}, expected {first.get(name)!r} as in the file")
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    return found


def _turns(engine: Engine, item: Item, settings: ReplySettings) -> int:
    if "text" not in item.content:
        return turns_to_answer(item)
    return len(range(0, len(engine.tokenizer.encode(item.content["text"])), settings.max_length))


def _prompt(
    engine: Engine, item: Item, number: int, turn: int, found: Mapping[tuple[int, int], Any], settings: ReplySettings
) -> list[int]:
    if "text" not in item.content:
        said = [found[number, earlier]["text"] for earlier in range(turn)]
        return prompt_of_turn(item, engine.tokenizer, said)
    tokens = list(engine.tokenizer.encode(item.content["text"]))
    piece = tokens[turn * settings.max_length : (turn + 1) * settings.max_length]
    return piece[: settings.prompt_tokens or max(1, len(piece) // 2)]
