"""Prompts of any length, read in chunks of any size, and blocks of any width (CK-5, T9)."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest

from dflash2_mlx.decode.request import PrefillProgress
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request
from dflash2_mlx.targets.base import PassOutput, Target, TargetSpec
from dflash2_mlx.targets.state import TargetState
from tests.runs import (
    CRITICAL,
    FAMILIES,
    PROMPT,
    assert_same_rows,
    assert_state_of,
    lively_reply,
    lively_target,
    plain_reply,
    rows_of,
    run,
    step_through,
    thinned,
)
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import make_tiny_drafter

pytestmark = pytest.mark.bits

WINDOW = 8
LONG = [(7 * i * i + 3 * i + 11) % 199 for i in range(90)]


class CountingTarget:
    """Hands everything through and notes how many rows each pass had, and whether it was tapped."""

    def __init__(self, target: Target):
        self.inner = target
        self.calls: list[tuple[int, bool]] = []

    @property
    def spec(self) -> TargetSpec:
        return self.inner.spec

    def new_state(self, batch: int = 1) -> TargetState:
        return self.inner.new_state(batch)

    def forward(
        self, ids: mx.array, state: TargetState, *, taps: Sequence[int] = (), last_only: bool = False
    ) -> PassOutput:
        self.calls.append((ids.shape[1], bool(taps)))
        return self.inner.forward(ids, state, taps=taps, last_only=last_only)

    def commit(self, state: TargetState, keep: int | mx.array) -> None:
        self.inner.commit(state, keep)

    def embed(self, ids: mx.array) -> mx.array:
        return self.inner.embed(ids)

    def head(self, hidden: mx.array) -> mx.array:
        return self.inner.head(hidden)


def prefilled(target: Target, drafter: ScriptedDrafter, chunk: int) -> DFlash2Session:
    """A session whose prompt was just read."""
    session = DFlash2Session(target, drafter)
    for progress in step_through(session, Request(LONG, 20, width=5, prefill_chunk=chunk)):
        assert isinstance(progress, PrefillProgress)
        if progress.done == len(LONG):
            break
    return session


CHUNKS = {WINDOW: (7, 512), 50: (1, 90), None: (64, 90)}


@pytest.mark.parametrize(("family", "window"), thinned(CRITICAL, [*CHUNKS]))
def test_chunks_leave_no_trace(family, window):
    kinds = {"layer_types": ["full_attention"] * 2} if window is None else {"sliding_window": window}
    drafter = make_tiny_drafter(**kinds)
    whole = prefilled(lively_target(family), drafter, len(LONG))
    first_row = 0 if window is None else len(LONG) - (window - 1)
    expected = run(DFlash2Session(lively_target(family), drafter), Request(LONG, 20, width=5, prefill_chunk=len(LONG)))
    for chunk in CHUNKS[window]:
        target = CountingTarget(lively_target(family))
        session = prefilled(target, drafter, chunk)
        assert max(rows for rows, _ in target.calls) <= chunk
        assert sum(rows for rows, _ in target.calls) == len(LONG)
        # Only chunks with rows the drafter can see are tapped.
        ends = [min((i + 1) * chunk, len(LONG)) for i in range(len(target.calls))]
        assert [tapped for _, tapped in target.calls] == [end > first_row for end in ends]
        held, other = session.memory.context.buffers, whole.memory.context.buffers
        assert held.base == other.base == first_row
        for mine, theirs in zip((*held.keys, *held.values), (*other.keys, *other.values), strict=True):
            rows = [rows_of(b, a, first_row, len(LONG)) for b, a in ((held, mine), (other, theirs))]
            assert_same_rows(*rows, f"context rows with chunks of {chunk}")
        assert_state_of(session, LONG, one_pass=True)
        session.finish()
        reply = run(DFlash2Session(lively_target(family), drafter), Request(LONG, 20, width=5, prefill_chunk=chunk))
        assert reply == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_is_reported_chunk_by_chunk(family):
    session = PlainSession(lively_target(family))
    steps = step_through(session, Request(LONG[:23], 2, prefill_chunk=7))
    seen = [next(steps) for _ in range(4)]
    assert [(p.done, p.total, p.cached) for p in seen] == [(7, 23, 0), (14, 23, 0), (21, 23, 0), (23, 23, 0)]


@pytest.mark.parametrize(
    ("family", "length"),
    thinned(["qwen3_5", "muse_glimmer", "llama"], [1, 2, 3, 6, 7, 8, 9, 10, 15, 16, 17, 63, 64, 65], keep=3),
)
def test_prompt_lengths_around_windows_and_buffer_sizes(family, length):
    target = lively_target(family)
    prompt = LONG[:length]
    plain = plain_reply(target, prompt, 16)
    text = [*prompt, *plain]
    session = DFlash2Session(target, ScriptedDrafter(text, ramp(4)))
    reply = run(session, Request(prompt, 16, width=5), each=lambda _: assert_state_of(session, text))
    assert reply.tokens == plain


@pytest.mark.parametrize("family", CRITICAL)
def test_a_mask_token_that_is_a_real_token(family):
    # The reply contains the id that fills the drafter's blocks; it must come through like any other.
    plain = lively_reply(family)
    mask = plain[7]
    for accepts in (ramp(4), [-1]):
        drafter = ScriptedDrafter([*PROMPT, *plain], accepts, mask_token_id=mask)
        assert run(DFlash2Session(lively_target(family), drafter), Request(PROMPT, 64, width=5)).tokens == list(plain)
    random = make_tiny_drafter(mask_token_id=mask)
    assert run(DFlash2Session(lively_target(family), random), Request([mask, *PROMPT], 30, width=5)).tokens == (
        plain_reply(lively_target(family), [mask, *PROMPT], 30)
    )


@pytest.mark.parametrize("family", CRITICAL)
def test_blocks_of_16(family):
    plain = lively_reply(family, max_tokens=100)
    text = [*PROMPT, *plain]
    drafter = ScriptedDrafter(text, [15, 0, 7, 14, 1, 8], block_size=16)
    session = DFlash2Session(lively_target(family), drafter)
    reply = run(session, Request(PROMPT, 100, width=16), each=lambda _: assert_state_of(session, text))
    assert reply.tokens == list(plain)
    assert max(result.num_accepted for result in reply.rounds) == 15


@pytest.mark.parametrize("width", [2, 3, 5, 8, 11])
def test_a_width_below_the_block_size(width):
    # As many mask rows as are verified: a block of 16 run at another width is not a wider block cut off.
    plain = lively_reply("qwen3_5")
    drafter = ScriptedDrafter([*PROMPT, *plain], [15, 0, 3], block_size=16)
    session = DFlash2Session(lively_target("qwen3_5"), drafter)
    reply = run(session, Request(PROMPT, 64, width=width))
    assert reply.tokens == list(plain)
    assert {result.width for result in reply.rounds} == {width}
    assert {len(result.proposal) for result in reply.rounds} == {width - 1}
