"""The target's replies to many prompts at a time, decoded plainly.

Owns: batches of prompts of different lengths, and what each draws. A reply depends on its prompt, the settings and its
stream alone, not on what it shared a batch with (to float rounding).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from ..decode.session import best_logits
from ..device.runtime import owner
from ..engine import Engine
from ..errors import LogitsError, PromptError
from ..sampling.config import GREEDY_TEMPERATURE
from ..sampling.rng import Purpose, base_keys, gumbel
from ..targets.base import Target
from ..targets.state import TargetState
from ..validation import check_integer, check_number

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
        LogitsError: the target's numbers are not finite.
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
        read: Any = mx.stack([last, mx.isfinite(best_logits(logits)).astype(mx.int32)]).tolist()
        tokens, fine = read
        for row in list(open_rows):
            if not fine[row]:
                raise LogitsError(target.spec.family, logits.dtype)
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
