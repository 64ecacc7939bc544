"""One reply behind 32,000 tokens of a tiny hybrid pair: memory, equality, and drafts that cost what they always do."""

from __future__ import annotations

import statistics
import time

import mlx.core as mx
import pytest

from dflash2_mlx.decode.costs import target_chains
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request
from dflash2_mlx.drafters.dflash2.context import DrafterContext
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.targets.base import Target
from tests.decode.test_memory import MB, in_use, kept_bytes, read_prompt
from tests.runs import lively_target, run
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import make_tiny_drafter

DEPTH, CHUNK, WINDOW, WIDTH = 32_000, 512, 64, 5
TEXT = [(7 * i + i // 13) % 200 for i in range(DEPTH)]


def draft_s(drafter: DraftModel, context: DrafterContext, lender: Target) -> float:
    """Median seconds of a draft behind this context, which stays as it is."""
    anchor, times = mx.array([3], dtype=mx.int32), []
    for _ in range(15):
        began = time.perf_counter()
        mx.eval(drafter.propose(anchor, context, WIDTH, lender).tokens)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@pytest.mark.slow
def test_a_reply_behind_32k_tokens():
    target, before = lively_target("qwen3_5"), in_use()
    drafter = make_tiny_drafter(sliding_window=WINDOW, compiled=True)
    short = DFlash2Session(target, drafter)
    read_prompt(short, Request(TEXT[:1000], 64, width=WIDTH, prefill_chunk=CHUNK))
    session = DFlash2Session(target, drafter)
    mx.reset_peak_memory()
    read_prompt(session, Request(TEXT, 64, width=WIDTH, prefill_chunk=CHUNK))
    # Memory: rows of the full layers, one chunk's scores (4 heads, float32), and nothing else that grows.
    kept, scores = kept_bytes(session), CHUNK * DEPTH * 4 * 4
    assert mx.get_peak_memory() - before < 2 * kept + 3 * scores + 8 * MB
    assert session.memory.context.buffers.capacity <= short.memory.context.buffers.capacity + WIDTH
    session.finish()
    memory = session.snapshot()

    plain = PlainSession(target)
    plain.restore(memory)
    prompt = [*TEXT, 5]  # a recurrent state can only go on: the same text again would be read again
    reply = run(plain, Request(prompt, 64)).tokens
    assert plain.cached_tokens == DEPTH and len(set(reply)) > 8

    # The random drafter, and one that knows the text and errs on schedule.
    session.restore(memory)
    assert run(session, Request(prompt, 64, width=WIDTH)).tokens == reply
    known = ScriptedDrafter([*prompt, *reply], ramp(WIDTH - 1), sliding_window=WINDOW)
    knowing = DFlash2Session(target, known)
    knowing.restore(memory)
    drafted = run(knowing, Request(prompt, 64, width=WIDTH))
    assert drafted.tokens == reply and {r.num_accepted for r in drafted.rounds} >= set(range(WIDTH))

    # Drafting sees a window, so its cost does not know the depth; the target's pass does.
    session.restore(memory)
    near, far = (draft_s(drafter, one.memory.context, target) for one in (short, session))
    assert far < 3 * near + 0.005


def test_a_depth_that_was_only_pretended_costs_like_a_real_one():
    """`target_chains` times passes behind rows that nobody read: as many as it was told."""
    target = lively_target("muse_glimmer")
    chains = target_chains(target, [1, 4], depth=3000)
    mx.eval(chains[4](2), chains[1](2))
    state = target.new_state(1)
    target.forward(mx.zeros((1, 5), dtype=mx.int32), state)
    target.commit(state, 5)
    state.settle(5, 5, 0)
    state.pretend(3000)
    assert state.upper == state.floor == 3000 and state.length.item() == 3000
    target.forward(mx.zeros((1, 4), dtype=mx.int32), state)
    assert state.full.capacity >= 3004 and state.full.keys[0].shape[2] >= 3004
    assert state.sliding.window is not None and state.sliding.capacity < 3 * state.sliding.window + 300
