"""Our layer loop says what mlx-lm's own models say.

Past a sliding window mlx-lm's rotating cache differs in the last bits from its own one-shot forward (its keys
are stored rotated), so there the one-shot forward is the measure.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from tests.runs import (
    FAMILIES,
    PROMPT,
    SLIDING,
    assert_same_rows,
    formats,
    lively_model,
    lively_target,
    plain_reply,
    slow_unless,
)

pytestmark = pytest.mark.bits

WINDOW = 8
LENGTH = 150  # beyond the 64 positions where Ministral 3 begins to scale its queries
TEXT = [(11 * i * i + 5 * i + 3) % 211 for i in range(LENGTH)]
CASES = [(family, kind) for family in FAMILIES for kind in formats(family)]


def text_model(family: str, kind: str):
    model = lively_model(family, kind)
    return model.language_model if "language_model" in model else model


def one_shot(family: str, kind: str, text: list[int]) -> mx.array:
    """mlx-lm's logits [1, L, V], without a cache."""
    return text_model(family, kind)(mx.array([text]))


@pytest.mark.parametrize(("family", "kind"), [slow_unless(at % 2 == 1, *case) for at, case in enumerate(CASES)])
def test_plain_decoding_equals_generate_step(family, kind):
    prompt, tokens = (PROMPT[:3], WINDOW - 3) if family in SLIDING else (TEXT[:50], 64)
    # mlx-lm picks the best log-probability; rounded to bfloat16, several can be best where one logit is.
    steps = generate_step(
        mx.array(prompt),
        text_model(family, kind),
        max_tokens=tokens,
        logits_processors=[lambda _, logits: logits.astype(mx.float32)],
    )
    assert plain_reply(lively_target(family, kind), prompt, tokens) == [int(token) for token, _ in steps]


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_logits_equal_a_one_shot_forward(family, kind):
    # Read in blocks of every size, so that each row's position, mask and cache slot are tried at each border.
    target = lively_target(family, kind)
    expected = one_shot(family, kind, TEXT)
    state, position = target.new_state(), 0
    for rows in (1, 7, 1, 2, 5, 8, 3, 37, 1, 4, 20, 61):
        ids = mx.array([TEXT[position : position + rows]])
        logits = target.forward(ids, state).logits
        target.commit(state, rows)
        state.settle(rows, rows, position + rows)
        assert_same_rows(logits, expected[:, position : position + rows], f"rows {position}..{position + rows}")
        position += rows
    assert position == LENGTH


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_row_alone(family):
    target = lively_target(family)
    whole = target.forward(mx.array([TEXT[:20]]), target.new_state()).logits
    last = target.forward(mx.array([TEXT[:20]]), target.new_state(), last_only=True).logits
    assert_same_rows(last, whole[:, -1:], "last row")


@pytest.mark.parametrize("family", ["llama_sliding", "muse_glimmer"])
def test_the_reply_past_the_window_equals_one_shot_forwards(family):
    # Every token is the best one after all before it, read at once.
    reply = plain_reply(lively_target(family), TEXT[:5], 60)
    text = [*TEXT[:5], *reply]
    best = mx.argmax(one_shot(family, "f32", text), axis=-1)[0].tolist()
    assert best[4:-1] == reply
