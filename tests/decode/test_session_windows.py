"""Crossing the windows of target and drafter, with rejected blocks before, on and after the crossing (CK-3).

Window 8 on both sides. Buffers are made tight, so that rows are dropped every few rounds, and every write is
checked to lie inside its buffer: MLX itself would write past the end without a word.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request
from dflash2_mlx.layers import kv_cache as buffers
from dflash2_mlx.layers.kv_cache import RowBuffers
from tests.runs import SLIDING, assert_state_of, bits, lively_target, plain_reply, run, slow_unless, thinned
from tests.scripted import WRONG, ScriptedDrafter, ramp, reject_every
from tests.tiny import make_tiny_drafter

pytestmark = pytest.mark.bits

WINDOW = 8
TEXT = [3, 5, 9, 100, 20, 77, 31, 4, 190, 66, 12, 85, 140, 7, 57, 58, 201, 33]


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Little spare room, checked writes; returns the bases seen."""
    monkeypatch.setattr(buffers, "GROWTH", 3)
    monkeypatch.setattr(buffers, "_SMALL", 2)
    bases = set()
    put, resize = buffers._put_rows, RowBuffers._resize

    def checked(buffer: mx.array, rows: mx.array, at: mx.array) -> mx.array:
        first, last = min(at.tolist()), max(at.tolist())
        assert first >= 0 and last + rows.shape[2] <= buffer.shape[2], "a write outside of its buffer"
        return put(buffer, rows, at)

    def noted(self: RowBuffers, drop: int, capacity: int) -> None:
        resize(self, drop, capacity)
        bases.add(self.base)

    monkeypatch.setattr(buffers, "_put_rows", checked)
    monkeypatch.setattr(RowBuffers, "_resize", noted)
    return bases


def crossings() -> Iterator[Any]:
    """Prompt lengths around the window, widths up to a whole window, rejects at every place of the block."""
    schedules = [reject_every(3), [2, 0, 7, 1, 0], WRONG, ramp(7)]
    for number, length in enumerate((1, 3, 6, 7, 8, 9, 10, 16)):
        for turn, width in enumerate((2, 4, 5, 8)):
            if (number + turn) % 2:
                family = (*SLIDING, "qwen3_5")[(number + 2 * turn) % 3]
                always = number % 4 >= 2 or turn >= 2
                yield slow_unless(always, family, length, width, schedules[(number // 2 + turn) % 4])


@pytest.mark.parametrize(("family", "length", "width", "accepts"), list(crossings()))
def test_two_turns_across_the_windows(tight, family, length, width, accepts):
    target = lively_target(family)
    prompt, new = TEXT[:length], TEXT[::-1][:length]
    first = plain_reply(target, prompt, 32)
    drafter = ScriptedDrafter([*prompt, *first], accepts, block_size=8)
    session = DFlash2Session(target, drafter)
    text = [*prompt, *first]
    reply = run(session, Request(prompt, 32, width=width), each=lambda _: assert_state_of(session, text))
    assert reply.tokens == first
    assert len(tight) >= 2, "the buffers were never compacted"

    second = [*text, *new]
    plain = plain_reply(target, second, 20)
    drafter.learn([*second, *plain])
    text = [*second, *plain]
    reply = run(session, Request(second, 20, width=width), each=lambda _: assert_state_of(session, text))
    assert reply.tokens == plain
    assert reply.cached == length + 31


@pytest.mark.parametrize(("window", "block"), [(8, 8), (5, 5), (3, 5), (2, 4), (1, 3), (11, 5)])
def test_drafter_windows_of_any_size(tight, window, block):
    target = lively_target("qwen3_5")
    plain = plain_reply(target, TEXT, 30)
    text = [*TEXT, *plain]
    drafter = ScriptedDrafter(text, [*ramp(block - 1), 0], block_size=block, sliding_window=window)
    session = DFlash2Session(target, drafter)
    reply = run(session, Request(TEXT, 30, width=block), each=lambda _: assert_state_of(session, text))
    assert reply.tokens == plain


@pytest.mark.parametrize("family", SLIDING)
def test_plain_decoding_across_the_window(tight, family):
    target = lively_target(family)
    session = PlainSession(target)
    plain = plain_reply(target, TEXT, 50)
    text = [*TEXT, *plain]
    run(session, Request(TEXT, 50), each=lambda _: assert_state_of(session, text))
    assert len(tight) > 5


@pytest.mark.parametrize(("family", "results"), thinned(SLIDING, range(2, 14), keep=3))
def test_going_back_just_after_rows_were_dropped(tight, family, results):
    # The round in flight has already been given room; the rows its undoing needs must have survived that.
    target = lively_target(family)
    plain = plain_reply(target, TEXT[:4], 40)
    session = DFlash2Session(target, ScriptedDrafter([*TEXT[:4], *plain], [3, 0, 4, 1]))
    session.begin(Request(TEXT[:4], 40, width=5))
    for _ in range(results):
        result = session.step()
    session.finish(keep=1 if len(result.tokens) > 1 else None)
    assert_state_of(session, session.tokens)
    second = [*session.tokens, 17]
    reply = run(session, Request(second, 20, width=5))
    assert reply.tokens == plain_reply(target, second, 20)


# Which keys a row sees.


def perturbed(rows: RowBuffers, layer: int, position: int) -> None:
    """Change one row of V that should, or should not, be visible."""
    at = mx.arange(rows.capacity)[None, None, :, None] == position - rows.base
    rows.values[layer] = mx.where(at, rows.values[layer] + 1.0, rows.values[layer])


def changed_rows(before: mx.array, after: mx.array) -> list[bool]:
    return (bits(before) != bits(after)).any(axis=(0, 2)).tolist()


def drafted_session(family: str, drafter: ScriptedDrafter | None, tokens: int) -> DFlash2Session:
    target = lively_target(family)
    plain = plain_reply(target, TEXT[:5], tokens)
    drafter = drafter or ScriptedDrafter([], reject_every(3), block_size=8)
    drafter.learn([*TEXT[:5], *plain])
    session = DFlash2Session(target, drafter)
    run(session, Request(TEXT[:5], tokens, width=5))
    return session


@pytest.mark.parametrize("group", [1, 4, 5, 8])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 9, 40])
def test_a_sliding_row_sees_exactly_the_last_window(tight, tokens, group):
    # The last layer slides, so a changed row reaches the logits of exactly those who see it.
    session = drafted_session("llama_sliding", None, tokens)
    state, layer = session.memory.state, len(session.memory.state.sliding.keys) - 1
    ids = mx.array([TEXT[:group]], dtype=mx.int32)
    start = session.memory.position
    before = session.target.forward(ids, state.copy()).logits
    for position in range(state.sliding.base, state.sliding.base + state.sliding.capacity):
        probe = state.copy()
        perturbed(probe.sliding, layer, position)
        after = session.target.forward(ids, probe).logits
        sees = [0 <= start + i - position < WINDOW and position < start for i in range(group)]
        assert changed_rows(before, after) == sees, position
    assert state.sliding.base <= max(0, start - WINDOW + 1)


@pytest.mark.parametrize("tokens", [3, 4, 40])
def test_muse_glimmer_slides_alike(tight, tokens):
    session = drafted_session("muse_glimmer", None, tokens)
    state, start = session.memory.state, session.memory.position
    ids = mx.array([[50]], dtype=mx.int32)
    before = session.target.forward(ids, state.copy()).logits
    for position in range(state.sliding.base, state.sliding.base + state.sliding.capacity):
        probe = state.copy()
        perturbed(probe.sliding, 2, position)
        after = session.target.forward(ids, probe).logits
        assert changed_rows(before, after) == [start - WINDOW < position < start], position


def one_layer_drafter(*, causal: bool, window: int = WINDOW) -> ScriptedDrafter:
    """One layer and an identity convolution: rows do not hear of what other rows see."""
    drafter = ScriptedDrafter(
        [],
        reject_every(3),
        block_size=8,
        num_hidden_layers=1,
        layer_types=["sliding_attention"],
        is_causal=causal,
        sliding_window=window,
    )
    for conv in (drafter.layers[0].attention_conv, drafter.layers[0].mlp_conv):
        conv.base_kernel = mx.broadcast_to(mx.array([1.0, 0.0])[None, :, None], conv.base_kernel.shape)
        conv.kernel_projection.weight = mx.zeros_like(conv.kernel_projection.weight)
    return drafter


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 8])
def test_block_rows_see_each_other_within_the_window(causal, window):
    drafter, width = one_layer_drafter(causal=causal, window=window), 6
    block = drafter.block_embeddings(mx.array([50], dtype=mx.int32), width, lively_target("qwen3"))
    before = drafter.hidden(block, drafter.new_context())
    for changed in range(width):
        other = mx.where(mx.arange(width)[None, :, None] == changed, block[:, :, ::-1], block)
        after = drafter.hidden(other, drafter.new_context())
        sees = [abs(row - changed) < window and (row >= changed or not causal) for row in range(width)]
        assert changed_rows(before, after) == sees, changed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [2, 5, 8])
@pytest.mark.parametrize("tokens", [2, 3, 4, 40])
def test_a_block_row_sees_what_is_nearer_than_the_window(tight, tokens, width, causal):
    drafter = one_layer_drafter(causal=causal)
    session = drafted_session("qwen3", drafter, tokens)
    context, start = session.memory.context, session.memory.position
    block = drafter.block_embeddings(mx.array([50], dtype=mx.int32), width, session.target)
    before = drafter.hidden(block, context.copy())
    held = context.buffers
    for position in range(held.base, held.base + held.capacity):
        probe = context.copy()
        perturbed(probe.buffers, 0, position)
        after = drafter.hidden(block, probe)
        # Rows at `start` and after are the block's own; what lay there before is overwritten or out of sight.
        sees = [position < start and abs(start + i - position) < WINDOW for i in range(width)]
        assert changed_rows(before, after) == sees, position
    assert held.base <= max(0, start - WINDOW + 1)


# The buffers alone, against a list.


@pytest.mark.parametrize("window", [None, 1, 3, 8, 20])
@pytest.mark.parametrize("batch", [1, 3])
def test_buffers_keep_what_is_visible(tight, batch, window):
    """Random rounds, one always in flight; row contents are their own positions."""
    chance = random.Random(7 * batch + (window or 0))
    held = RowBuffers(2, batch, window)
    lengths, floor, upper, flight = [0] * batch, 0, 0, None
    for _ in range(150):
        rows = chance.randint(1, 9)
        held.reserve(floor, upper, rows)
        upper += rows
        start = mx.array(lengths, dtype=mx.int32)
        content = (start[:, None] + mx.arange(rows))[:, None, :, None].astype(mx.float32)
        for layer in range(2):
            held.write(layer, content, -content, start)
        keep = [chance.randint(0, rows) for _ in lengths]
        before, lengths = list(lengths), [n + k for n, k in zip(lengths, keep, strict=True)]
        if flight is not None:  # the host learns of the round before; lengths of a batch are apart
            floor, upper = flight[0], upper - flight[1]
        flight = (min(before), rows - max(keep)) if batch == 1 else (min(before), 0)
        first = max(0, min(before) - (window or 10**6) + 1)
        for row, length in enumerate(lengths):
            for array, sign in ((held.keys[1], 1), (held.values[1], -1)):
                kept = array[row, 0, max(first - held.base, 0) : length - held.base, 0].tolist()
                assert kept == [sign * p for p in range(first, length)]
    assert window is None or held.base > 0


def test_a_long_prompt_gives_its_room_back():
    target = lively_target("muse_glimmer")
    session = DFlash2Session(target, make_tiny_drafter())
    prompt = (TEXT * 60)[:1000]
    session.begin(Request(prompt, 4, width=5, prefill_chunk=500))
    session.step()
    assert session.memory.state.sliding.capacity >= 500
    session.step()
    assert session.memory.state.sliding.capacity <= 128
    assert session.memory.context.buffers.capacity <= 128
    assert session.memory.state.full.capacity >= 1000


@pytest.mark.slow
@pytest.mark.parametrize("family", SLIDING)
def test_1000_tokens_with_the_ordinary_room(family):
    target = lively_target(family)
    plain = plain_reply(target, TEXT, 1000)
    text = [*TEXT, *plain]
    session = DFlash2Session(target, ScriptedDrafter(text, [*ramp(4), 0, 3, 0]))
    checked = iter(range(10**6))
    reply = run(
        session,
        Request(TEXT, 1000, width=5),
        each=lambda _: assert_state_of(session, text) if next(checked) % 7 == 0 else None,
    )
    assert reply.tokens == plain
    assert session.memory.state.sliding.base > 500
