"""A drafter that is told to see less: a narrower window, and a sink in front of it.

What a session proposes is compared with a drafter that keeps every context row and only masks: dropping rows, gaps
left by long prompts and the sink's place in the buffer must change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.session import DFlash2Session, Request
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.attention import block_mask
from dflash2_mlx.drafters.dflash2.config import DrafterConfig, narrow_view
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.errors import SettingError
from dflash2_mlx.layers import kv_cache as buffers
from dflash2_mlx.layers.kv_cache import RowBuffers
from tests.engines import tiny_engine
from tests.reference.masks import visibility
from tests.runs import lively_target, plain_reply, run, step_through
from tests.tiny import drafter_config, drafter_weights

BLOCK = 5
TEXT = [3, 5, 9, 100, 20, 77, 31, 4, 190, 66, 12, 85, 140, 7, 57, 58, 201, 33, 41, 92, 6, 18, 120, 44, 45, 150, 2, 61]


def drafter(window: int | None, sink: int, **changes: object) -> DraftModel:
    config = DrafterConfig.from_dict(drafter_config(sliding_window=20, **changes))
    model = DraftModel(narrow_view(config, window, sink))
    model.load_weights(list(drafter_weights(config).items()))
    mx.eval(model.parameters())
    return model


@pytest.mark.parametrize("sink", [0, 1, 3, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_the_mask_is_the_reference(sink: int, causal: bool) -> None:
    for start in (0, 2, 7, 30):
        positions = np.arange(start + BLOCK + 4)
        got = block_mask(
            mx.array(positions), mx.array([start], dtype=mx.int32), BLOCK, window=6, causal=causal, sink=sink
        )
        wanted = visibility(range(start, start + BLOCK), positions, is_causal=causal, window=6, sink=sink)
        wanted &= positions < start + BLOCK
        np.testing.assert_array_equal(np.array(got[0, 0]), wanted)


@pytest.mark.parametrize("sink", [0, 1, 2, 5])
def test_a_buffer_with_a_sink_holds_what_it_says(sink: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "GROWTH", 3)
    monkeypatch.setattr(buffers, "_SMALL", 2)
    held, window = RowBuffers(1, 1, 6, sink), 6
    for position in range(40):
        held.reserve(position, position, 2)
        rows = mx.full((1, 1, 2, 1), float(position + 100))  # the second row is overwritten by the next
        held.write(0, rows, rows, mx.array([position], dtype=mx.int32))
        values = dict(zip(held.positions().tolist(), held.keys[0][0, 0, :, 0].tolist(), strict=True))
        seen = [p for p in range(position + 1) if p < sink or position - p < window]
        assert [values[p] for p in seen] == [p + 100 for p in seen]
        assert held.capacity <= sink + 6 + 2 + 2 * 3 + 2
        packed = held.packed(position + 1)
        assert packed.capacity == min(position + 1, sink + window - 1)
        values = dict(zip(packed.positions().tolist(), packed.keys[0][0, 0, :, 0].tolist(), strict=True))
        seen = [p for p in range(position + 1) if p < sink or position + 1 - p < window]
        assert [values[p] for p in seen] == [p + 100 for p in seen]


def proposals(model: DraftModel, text: list[int], anchors: list[int]) -> Iterator[tuple[int, ...]]:
    """What is drafted after text[:anchor + 1] when every context row is kept and visibility is the mask's alone."""
    target = lively_target("qwen3")
    out = target.forward(mx.array([text], dtype=mx.int32), target.new_state(), taps=model.config.target_layer_ids)
    for anchor in anchors:
        context = model.new_context(1)
        context.buffers.window = None
        model.append_context(out.taps[:, :anchor], context, anchor)
        context.reserve(BLOCK)
        assert context.buffers.base == 0  # no row was dropped: the sink stands where it would stand without one
        first = mx.array([text[anchor]], dtype=mx.int32)
        yield tuple(model.propose(first, context, BLOCK, target).tokens[0].tolist())


@pytest.mark.parametrize(
    ("window", "sink", "length", "chunk"),
    [
        (None, 0, 28, 512),
        (8, 0, 28, 512),
        (8, 3, 28, 512),  # a gap between sink and window
        (8, 3, 28, 2),  # the chunks' borders lie inside the sink and at its end
        (8, 6, 13, 4),  # first visible row is the sink's last
        (5, 5, 28, 7),
        (None, 4, 3, 512),  # prompt shorter than the sink
        (12, 1, 20, 1),
    ],
)
def test_a_session_drafts_as_if_every_row_were_kept(window, sink, length, chunk, monkeypatch) -> None:
    monkeypatch.setattr(buffers, "GROWTH", 3)
    monkeypatch.setattr(buffers, "_SMALL", 2)
    target, model = lively_target("qwen3"), drafter(window, sink)
    prompt = TEXT[:length]
    plain = plain_reply(target, prompt, 24)
    session = DFlash2Session(target, model)
    reply = run(session, Request(prompt, 24, width=BLOCK, prefill_chunk=chunk))
    assert reply.tokens == plain
    text, anchors, place = [*prompt, *plain], [], length
    for result in reply.rounds:
        anchors.append(place)
        place += len(result.tokens)
    picked = [0, 1, len(anchors) // 2, len(anchors) - 1]
    expected = list(proposals(model, text, [anchors[i] for i in picked]))
    assert [reply.rounds[i].proposal for i in picked] == expected

    # A second turn, and one after a prompt that was cancelled while it was read.
    second = [*text, *TEXT[::-1][:9]]
    fresh = run(DFlash2Session(target, model), Request(second, 12, width=BLOCK))
    assert run(session, Request(second, 12, width=BLOCK)).rounds == fresh.rounds
    other = DFlash2Session(target, model)
    for _ in zip(range(2), step_through(other, Request(TEXT, 4, width=BLOCK, prefill_chunk=9)), strict=False):
        pass
    other.finish()
    assert run(other, Request(second, 12, width=BLOCK)).rounds == fresh.rounds


def test_a_narrower_view_changes_proposals_and_a_sink_brings_some_back() -> None:
    target = lively_target("qwen3")
    seen = {
        view: [r.proposal for r in run(DFlash2Session(target, drafter(*view)), Request(TEXT, 16, width=BLOCK)).rounds]
        for view in ((None, 0), (6, 0), (6, 4))
    }
    assert len({str(found) for found in seen.values()}) == 3


def test_full_layers_become_sliding() -> None:
    config = DrafterConfig.from_dict(drafter_config(layer_types=["full_attention"] * 2, sliding_window=None))
    narrow = narrow_view(config, 9, 2)
    assert narrow.layer_types == ("sliding_attention",) * 2
    assert (narrow.sliding_window, narrow.context_window, narrow.sink, narrow.causal) == (9, 8, 2, config.causal)
    assert narrow_view(config, None, 0) is config


@pytest.mark.parametrize(
    ("window", "sink", "message"),
    [
        (4, 0, "draft_window: got 4, expected an integer in 5..20 (the checkpoint's sliding_window)"),
        (21, 0, "draft_window: got 21, expected an integer in 5..20 (the checkpoint's sliding_window)"),
        (True, 0, "draft_window: got True, expected an integer in 5..20"),
        (None, -1, "draft_sink: got -1, expected an integer >= 0"),
        (8, 9, "draft_sink: got 9, expected an integer in 0..8 (the window)"),
    ],
)
def test_impossible_views(window, sink, message) -> None:
    with pytest.raises(SettingError) as refused:
        drafter(window, sink)
    assert str(refused.value).startswith(message)


def test_a_sink_for_a_drafter_that_sees_everything() -> None:
    with pytest.raises(SettingError, match="draft_sink: got 4, expected 0: the drafter sees the whole context"):
        drafter(None, 4, layer_types=["full_attention"] * 2)


def test_prefixes_carry_the_sink_along() -> None:
    engine = tiny_engine("qwen3_5", owner().call(lambda: drafter(8, 3)))
    cache, config = d2.PrefixCache(), d2.GenerationConfig(max_tokens=12)
    told = [
        [event.round for event in d2.stream_generate(engine, TEXT, config, prefix_cache=given) if event.round]
        for given in (None, cache, cache)
    ]
    assert told[0] == told[1] == told[2]
    assert d2.generate(engine, TEXT, config, prefix_cache=cache).stats.cached_tokens == len(TEXT) - 1
