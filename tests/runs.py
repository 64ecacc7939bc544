"""Running sessions in tests, and comparing what they remember with a fresh prefill.

With MLX's own BLAS (`DFLASH2_BLAS=off`) bits are compared, not values: there a row's result does not depend on the
rows computed with it, so a difference is a fault of logic. A fast BLAS rounds a row by the block that it is in, and
what it gives is compared within a few roundings. README's test command runs both.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.decode.request import PrefillProgress, RoundResult, TokenLogprob
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from dflash2_mlx.device.blas import load_blas
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.layers.kv_cache import RowBuffers
from dflash2_mlx.targets.base import Target
from dflash2_mlx.targets.registry import make_target
from tests.tiny import TARGET_CONFIGS, make_mlx_model

PROMPT = [3, 5, 9, 100, 20, 77]
FAMILIES = sorted(TARGET_CONFIGS)
HYBRIDS = ("qwen3_5", "qwen3_5_moe")
SLIDING = ("llama_sliding", "muse_glimmer")
EXPERTS = ("qwen3_moe", "qwen3_5_moe")
# Where rollback has most to get wrong.
CRITICAL = (*HYBRIDS, *SLIDING)
SEEDS = (0, 3, 4)  # weights whose replies are varied in every family and format
# Weights and activations: name -> (dtype, bits). The CPU back-end has no bfloat16 experts.
FORMATS = {"f32": (mx.float32, None), "bf16": (mx.bfloat16, None), "4bit": (mx.float32, 4)}


def formats(family: str) -> list[str]:
    return [name for name in FORMATS if not (name == "bf16" and family in EXPERTS)]


def slow_unless(always: bool, *values: Any) -> Any:
    """A case for `parametrize` that runs always, or in slow runs only."""
    return pytest.param(*values, marks=() if always else pytest.mark.slow)


def thinned(*axes: Sequence[Any], keep: int = 2) -> list[Any]:
    """Combinations of some axes for `parametrize`: one in `keep` runs always, in a pattern with every value of an axis
    and every pair of neighbours; the rest is slow.
    """
    return [
        slow_unless(sum(places) % keep == 0, *(axis[at] for axis, at in zip(axes, places, strict=True)))
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def target_config(family: str) -> dict[str, Any]:
    """The tiny config, with expert sizes that 4-bit groups divide."""
    config = copy.deepcopy(TARGET_CONFIGS[family])
    for part in (config, config.get("text_config", {})):
        for key in ("moe_intermediate_size", "shared_expert_intermediate_size"):
            if key in part:
                part[key] = 64
    return config


@functools.cache
def lively_model(family: str, kind: str = "f32", seed: int = 0) -> Any:
    """mlx-lm's model, with weights that keep its replies varied.

    A tied embedding of ordinary size makes a random model repeat its last token, and biases near 1 drown
    everything else; a reply of one token would hide a wrong state.
    """
    dtype, bits = FORMATS[kind]
    model = make_mlx_model(target_config(family), seed=seed, dtype=dtype, bits=bits)
    text = model.language_model if "language_model" in model else model
    if "lm_head" not in text:
        table = text.model.embed_tokens
        for name in ("weight",) if bits is None else ("scales", "biases"):
            table[name] = table[name] / 32
    for layer in text.model.layers:
        for name, module in layer.named_modules():
            if name.endswith("_proj") and "bias" in module:
                module.bias = module.bias - 1
    mx.eval(model.parameters())
    return model


@functools.cache
def lively_target(family: str, kind: str = "f32", seed: int = 0) -> Target:
    return make_target(lively_model(family, kind, seed), target_config(family))


@dataclass
class Reply:
    """What one request produced."""

    tokens: list[int] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)  # without the token of the prefill pass
    finish_reason: str | None = None
    cached: int = 0


def step_through(session: Session, request: Request) -> Iterator[PrefillProgress | RoundResult]:
    """Begin a request and yield what each step returns; does not finish it."""
    session.begin(request)
    steps = 0
    while (result := session.step()) is not None:
        steps += 1
        assert steps <= len(request.prompt) + request.max_tokens, "the session does not come to an end"
        yield result


def run(
    session: Session, request: Request, *, each: Callable[[Reply], None] | None = None, finish: bool = True
) -> Reply:
    """Run a request to its end; `each` is called after every result."""
    reply = Reply()
    for result in step_through(session, request):
        if isinstance(result, RoundResult):
            reply.tokens.extend(result.tokens)
            if not result.first:
                reply.rounds.append(result)
            if each is not None:
                each(reply)
    reply.finish_reason = session.finish_reason
    reply.cached = session.cached_tokens
    if finish:
        session.finish()
    return reply


def plain_reply(target: Target, prompt: Sequence[int], max_tokens: int, **settings: Any) -> list[int]:
    """The target's own reply, one token per pass."""
    return run(PlainSession(target), Request(list(prompt), max_tokens, **settings)).tokens


@functools.cache
def lively_reply(family: str, kind: str = "f32", seed: int = 0, max_tokens: int = 64) -> tuple[int, ...]:
    """The plain reply to PROMPT, checked to be varied."""
    reply = plain_reply(lively_target(family, kind, seed), PROMPT, max_tokens)
    assert len(reply) == max_tokens
    assert len(set(reply)) >= 12, f"the reply of {family} {kind} {seed} repeats itself: {reply}"
    return tuple(reply)


# Comparing states.


def bits(array: mx.array) -> np.ndarray:
    """The array's bits, so that -0.0 differs from 0.0 and a NaN equals itself."""
    return np.array(array.view({4: mx.uint32, 2: mx.uint16}[array.dtype.size]))


def rounding() -> float:
    """How far float32 results of the same sums may lie apart here: not at all with MLX's own BLAS."""
    return 0.0 if load_blas().library is None else 1e-3


def assert_same_rows(mine: mx.array, fresh: mx.array, name: str) -> None:
    """Equal bits; in float32 over a fast BLAS, equal but for rounding."""
    assert mine.dtype == fresh.dtype, name
    if mine.dtype != mx.float32 or not rounding():
        np.testing.assert_array_equal(bits(mine), bits(fresh), err_msg=name)
    else:
        np.testing.assert_allclose(np.array(mine), np.array(fresh), rtol=rounding(), atol=rounding(), err_msg=name)


def assert_same_log_probabilities(mine: Sequence[TokenLogprob], other: Sequence[TokenLogprob]) -> None:
    """The same tokens, and log-probabilities that are equal but for rounding."""
    for left, right in zip(mine, other, strict=True):
        assert left.token == right.token
        assert left.logprob == pytest.approx(right.logprob, abs=rounding())
        assert dict(left.top) == pytest.approx(dict(right.top), abs=rounding())


def rows_of(buffers: RowBuffers, array: mx.array, first: int, end: int) -> mx.array:
    """Rows at absolute positions first..end-1 of one buffer."""
    assert buffers.base <= first and end <= buffers.base + buffers.capacity
    return array[:, :, first - buffers.base : end - buffers.base]


def assert_same_buffers(mine: RowBuffers, fresh: RowBuffers, length: int, name: str) -> None:
    """All rows both hold are equal, and every row that is still visible is held."""
    assert len(mine.keys) == len(fresh.keys), name
    if not mine.keys or length == 0:
        return
    visible = 0 if mine.window is None else max(0, length - (mine.window - 1))
    first = max(mine.base, fresh.base)
    assert first <= visible, f"{name}: rows from {visible} on are visible, kept are those from {first} on"
    for part in ("keys", "values"):
        for layer, (own, other) in enumerate(zip(getattr(mine, part), getattr(fresh, part), strict=True)):
            rows = rows_of(mine, own, first, length), rows_of(fresh, other, first, length)
            assert_same_rows(*rows, f"{name}, {part} {layer}")


class Reader:
    """What a target remembers of a text that it reads in order: nothing is ever rejected, nothing goes back."""

    def __init__(self, target: Target, taps: Sequence[int]):
        self.target, self.tapped = target, taps
        self.text: list[int] = []
        self.state, self.taps = target.new_state(), None

    def read(self, text: list[int]) -> None:
        """Go on to the end of a text; another text is read from its beginning."""
        if self.text != text[: len(self.text)]:
            self.text, self.state, self.taps = [], self.target.new_state(), None
        new = text[len(self.text) :]
        if not new:
            return
        out = self.target.forward(mx.array([new], dtype=mx.int32), self.state, taps=self.tapped)
        self.target.commit(self.state, len(new))
        if self.tapped:
            self.taps = out.taps if self.taps is None else mx.concatenate([self.taps, out.taps], axis=1)
        self.text = text


# A session is compared after every round: a text that only grows is not read from its beginning each time.
reader = functools.lru_cache(maxsize=32)(Reader)


def assert_state_of(session: Session, text: Sequence[int], *, with_context: bool = True, one_pass: bool = False) -> int:
    """The session remembers exactly a prefix of `text`, bit for bit as reading it in order leaves it.

    Args:
        with_context: False after a prompt was cancelled while read: the context may start after its rows.
        one_pass: compare with one pass over the whole prefix, and not with passes over what is new in each call.
    Returns:
        the length of that prefix: what the device says was committed, rounds in flight included
    """
    state, target = session.memory.state, session.target
    length = state.length.item()
    assert length <= len(text)
    assert state.floor <= length <= state.upper, "the host's bounds do not hold"
    drafter = session.drafter if isinstance(session, DFlash2Session) and with_context else None
    taps = tuple(drafter.config.target_layer_ids) if drafter is not None else ()
    reading = Reader(target, taps) if one_pass else reader(target, taps)
    reading.read(list(text[:length]))
    fresh = reading.state
    assert_same_buffers(state.full, fresh.full, length, "full attention")
    assert_same_buffers(state.sliding, fresh.sliding, length, "sliding attention")
    for layer, (mine, other) in enumerate(zip(state.recurrent, fresh.recurrent, strict=True)):
        if mine is None or other is None:
            assert mine is other, "a recurrent layer has a state on one side only"
            continue
        assert mine.recurrent.dtype == mx.float32
        assert_same_rows(mine.conv, other.conv, f"convolution window {layer}")
        assert_same_rows(mine.recurrent, other.recurrent, f"recurrent state {layer}")
    if isinstance(session, DFlash2Session) and with_context:
        context = session.memory.context
        assert context.length.item() == length, "drafter context and target state differ in length"
        assert context.floor <= length <= context.upper
        if length:
            assert_context_of(session.drafter, context, reading.taps, length)
    return length


def assert_context_of(drafter: DraftModel, context: Any, taps: mx.array, length: int) -> None:
    """The context holds the rows these taps project to."""
    fresh = drafter.new_context(1)
    drafter.append_context(taps, fresh, length)
    assert_same_buffers(context.buffers, fresh.buffers, length, "drafter context")
