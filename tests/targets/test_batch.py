"""Sequences in one batch, each with its own accept count, equal the same sequences alone (T11)."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from dflash2_mlx.drafters.dflash2.context import DrafterContext
from dflash2_mlx.layers import kv_cache
from dflash2_mlx.targets.state import TargetState
from tests.runs import FAMILIES, assert_same_rows, formats, lively_target, thinned
from tests.tiny import make_tiny_drafter

pytestmark = pytest.mark.bits

BLOCK = 5
TAPS = (0, 2)
PROMPTS = [[3, 5, 9], [100, 20, 77, 31, 4, 190, 66, 12, 85, 140, 7], [57, 58, 201, 33, 8, 1]]


def settle(held: TargetState | DrafterContext, lengths: list[int]) -> None:
    """Tell the host bounds of a batch: the longest sequence bounds from above, the shortest from below."""
    held.upper, held.floor = max(lengths), min(lengths)


def padded(sequences: list[list[int]]) -> mx.array:
    longest = max(map(len, sequences))
    return mx.array([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences], dtype=mx.int32)


@pytest.fixture
def room(tight, monkeypatch):
    """With little spare room the sliding buffers of all sequences move at once."""
    if tight:
        monkeypatch.setattr(kv_cache, "GROWTH", 3)
        monkeypatch.setattr(kv_cache, "_SMALL", 2)


@pytest.mark.parametrize(("family", "tight"), thinned(FAMILIES, [False, True]))
def test_a_ragged_batch_equals_single_runs(family, room):
    kind = formats(family)[len(family) % len(formats(family))]
    target, chance = lively_target(family, kind), random.Random(len(family))
    drafter = make_tiny_drafter()
    batch = len(PROMPTS)
    state, context = target.new_state(batch), drafter.new_context(batch)
    single_states = [target.new_state() for _ in PROMPTS]
    single_contexts = [drafter.new_context() for _ in PROMPTS]
    lengths = [0] * batch
    rounds = [PROMPTS] + [[[chance.randrange(211) for _ in range(BLOCK)] for _ in PROMPTS] for _ in range(8)]
    for number, sequences in enumerate(rounds):
        ids = padded(sequences)
        # The first pass reads prompts of three lengths: padding is just rows that are not kept.
        keep = [len(s) for s in sequences] if number == 0 else [chance.randint(0, BLOCK) for _ in sequences]
        kept = mx.array(keep, dtype=mx.int32)
        anchor = ids[:, 0]
        blocks = drafter.propose(anchor, context, BLOCK, target)
        out = target.forward(ids, state, taps=TAPS)
        target.commit(state, kept)
        drafter.append_context(out.taps, context, kept)
        for row in range(batch):
            alone = drafter.propose(anchor[row : row + 1], single_contexts[row], BLOCK, target)
            assert blocks.tokens[row].tolist() == alone.tokens[0].tolist()
            assert blocks.candidates[row].tolist() == alone.candidates[0].tolist()
            single = target.forward(ids[row : row + 1], single_states[row], taps=TAPS)
            target.commit(single_states[row], kept[row : row + 1])
            drafter.append_context(single.taps, single_contexts[row], kept[row : row + 1])
            for name in ("logits", "taps"):
                assert_same_rows(getattr(out, name)[row : row + 1], getattr(single, name), f"{name} {number} {row}")
            settle(single_states[row], [lengths[row] + keep[row]])
            settle(single_contexts[row], [lengths[row] + keep[row]])
        lengths = [n + k for n, k in zip(lengths, keep, strict=True)]
        settle(state, lengths)
        settle(context, lengths)
        assert state.length.tolist() == context.length.tolist() == lengths


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_sequences_stay_equal(family):
    # Four copies, accepted differently for a while, then brought to the same text again.
    target = lively_target(family)
    state = target.new_state(4)
    block = mx.broadcast_to(mx.array(PROMPTS[1][:BLOCK], dtype=mx.int32), (4, BLOCK))
    target.forward(block, state)
    target.commit(state, mx.array([5, 3, 0, 1], dtype=mx.int32))
    rest = [PROMPTS[1][k : k + BLOCK] for k in (5, 3, 0, 1)]
    target.forward(padded(rest), state)
    target.commit(state, mx.array([0, 2, 5, 4], dtype=mx.int32))
    state.upper = state.floor = BLOCK
    logits = target.forward(mx.broadcast_to(mx.array([[9]], dtype=mx.int32), (4, 1)), state).logits
    for row in range(1, 4):
        assert_same_rows(logits[row], logits[0], f"copy {row}")


@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer", "qwen3"])
@pytest.mark.parametrize("passes", [1, 2])
def test_rewinding_the_last_two_passes(family, passes):
    target = lively_target(family)
    prompt, kept = PROMPTS[1], 3
    # Rows a pass did not keep are overwritten by the next one, so two passes back only kept rows are left.
    for keep in range((BLOCK if passes == 1 else kept) + 1):
        state = target.new_state()
        target.forward(mx.array([prompt]), state)
        target.commit(state, len(prompt))
        state.forget_future(len(prompt))
        blocks = [PROMPTS[2][:BLOCK], [9, 8, 7, 6, 5]]
        starts = []
        for block in blocks:
            starts.append(state.length.item())
            target.forward(mx.array([block]), state)
            target.commit(state, mx.array([kept], dtype=mx.int32))
        state.rewind(passes, keep, starts[-passes] + keep)
        text = [*prompt, *(blocks[0][:kept] if passes == 1 else []), *blocks[-passes][:keep]]
        fresh = target.new_state()
        target.forward(mx.array([text]), fresh)
        target.commit(fresh, len(text))
        assert state.length.item() == state.upper == state.floor == len(text)
        mine, other = (target.forward(mx.array([[50, 51]]), s).logits for s in (state, fresh))
        assert_same_rows(mine, other, f"logits after keeping {keep} of {passes} passes ago")
