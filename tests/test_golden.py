"""Our drafter against vectors made with the authors' package (`tests/golden`).

Where the authors' own back-ends disagree, the vectors follow the specification; the manifest says where.
Everything is float32. The vectors are computed in float32 too, so both sides carry rounding: 1e-4 is about
four times what the float64 reference shows, and every wrong mask, norm or position moves hundreds of times more.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.checkpoints.drafter_weights import load_drafter_weights
from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.model import DraftModel
from tests.reference.drafter import ReferenceDrafter
from tests.reference.selector import pair_scores, softmax

GOLDEN = Path(__file__).parent / "golden"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
CASES = sorted(MANIFEST["cases"])
TOLERANCE = 1e-4
SAMPLED_TEMPERATURE = 0.7
REJECTED_ROWS = 3


class Tables:
    """The embedding and head a drafter borrows, as plain matrices."""

    def __init__(self, embedding: mx.array, head: mx.array):
        self.embedding = embedding
        self.matrix = head

    def embed(self, ids: mx.array) -> mx.array:
        return self.embedding[ids]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self.matrix.T


@dataclasses.dataclass(frozen=True)
class Step:
    """One drafted block: its context is target_hidden[start:end] after all earlier pieces."""

    number: int
    start: int
    end: int
    width: int
    anchor: int


@dataclasses.dataclass(frozen=True)
class Case:
    """One golden case, loaded."""

    raw: dict[str, Any]
    config: DrafterConfig
    folder: Path
    vectors: dict[str, mx.array]
    steps: list[Step]

    @property
    def tables(self) -> Tables:
        return Tables(self.vectors["embedding"], self.vectors["head"])

    def expected(self, step: Step, name: str) -> np.ndarray:
        return np.array(self.vectors[f"step{step.number}.{name}"])

    def taps(self, start: int, end: int) -> mx.array:
        return self.vectors["target_hidden"][None, start:end]

    def model(self, **changes: Any) -> DraftModel:
        config = dataclasses.replace(self.config, **changes)
        return load_drafter_weights(self.folder, config, dtype=mx.float32)


@cache
def load_case(name: str) -> Case:
    folder = GOLDEN / name
    raw = json.loads((folder / "config.json").read_text())
    vectors = mx.load(str(folder / "vectors.safetensors"))
    steps, start = [], 0
    per_step = zip(vectors["rows"].tolist(), vectors["widths"].tolist(), vectors["anchors"].tolist(), strict=True)
    for number, (rows, width, anchor) in enumerate(per_step):
        steps.append(Step(number, start, start + rows, width, anchor))
        start += rows
    return Case(raw, DrafterConfig.from_dict(raw), folder, vectors, steps)


def draft(case: Case, model: DraftModel, step: Step, context: Any) -> tuple[mx.array, mx.array, mx.array]:
    """Hidden rows [L, D], logits [N, V] and the greedy proposal [N] of one block."""
    tables, anchor = case.tables, mx.array([step.anchor])
    hidden = model.hidden(model.block_embeddings(anchor, step.width, tables), context)
    logits = model.scale_logits(tables.head(hidden[:, 1:]))
    proposal = model.propose(anchor, context, step.width, tables)
    return hidden[0], logits[0], proposal.tokens[0]


def check(case: Case, step: Step, outcome: tuple[mx.array, mx.array, mx.array]) -> None:
    hidden, logits, proposal = outcome
    np.testing.assert_allclose(hidden, case.expected(step, "hidden"), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(logits, case.expected(step, "logits"), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(proposal, case.expected(step, "proposal"))


def test_the_manifest_lists_every_case():
    assert sorted(path.parent.name for path in GOLDEN.glob("*/vectors.safetensors")) == CASES
    assert MANIFEST["tolerance"]["hidden"] == TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_context_appended_in_pieces(name):
    case = load_case(name)
    model = case.model()
    context = model.new_context()
    for step in case.steps:
        model.append_context(case.taps(step.start, step.end), context, step.end - step.start)
        check(case, step, draft(case, model, step, context))


@pytest.mark.parametrize("name", CASES)
def test_rows_of_rejected_tokens_leave_no_trace(name):
    # As in a round: more rows are projected than kept, and the count kept is a device value.
    case = load_case(name)
    model = case.model()
    context = model.new_context()
    for step in case.steps:
        rows = step.end - step.start
        rejected = 9 * mx.ones((1, REJECTED_ROWS, case.taps(0, 1).shape[-1]))
        taps = mx.concatenate([case.taps(step.start, step.end), rejected], axis=1)
        model.append_context(taps, context, mx.array([rows], dtype=mx.int32))
        check(case, step, draft(case, model, step, context))
        context.settle(rows + REJECTED_ROWS, rows, step.end)


@pytest.mark.parametrize("name", CASES)
def test_whole_context_in_one_piece(name):
    case = load_case(name)
    model = case.model()
    for step in case.steps:
        context = model.new_context()
        model.append_context(case.taps(0, step.end), context, step.end)
        check(case, step, draft(case, model, step, context))


@pytest.mark.parametrize("name", [name for name in CASES if load_case(name).config.context_window is not None])
def test_rows_no_block_row_can_see_may_be_left_out(name):
    case = load_case(name)
    model = case.model()
    for step in case.steps:
        first = max(0, step.end - case.config.context_window)
        context = model.new_context()
        context.skip_to(first)
        model.append_context(case.taps(first, step.end), context, step.end - first)
        check(case, step, draft(case, model, step, context))


@pytest.mark.parametrize("name", ["narrow_window", "published", "wide_block"])
def test_a_long_text_before_changes_nothing_but_rounding(name):
    # Long enough that the buffer is compacted several times. Only distances between positions matter, so the
    # vectors still hold; the wider tolerance is the float32 angle at positions near 1,300.
    case = load_case(name)
    model = case.model()
    step = case.steps[-1]
    noise = mx.random.normal((1, 1300, case.taps(0, 1).shape[-1]), key=mx.random.key(4))
    taps = mx.concatenate([noise, case.taps(0, step.end)], axis=1)
    context, end, sizes = model.new_context(), 0, itertools.cycle([37, 1, 5, 1, 8])
    while end < taps.shape[1]:
        rows = min(next(sizes), taps.shape[1] - end)
        model.append_context(taps[:, end : end + rows], context, rows)
        end += rows
        context.settle(rows, rows, end)
        # Against a context that holds nothing but the visible rows: every compaction is seen at once.
        first = max(0, end - case.config.context_window)
        short = model.new_context()
        short.skip_to(first)
        model.append_context(taps[:, first:end], short, end - first)
        hidden, _, proposal = draft(case, model, step, context)
        np.testing.assert_allclose(hidden, draft(case, model, step, short)[0], rtol=0, atol=TOLERANCE)
    assert context.buffers.base > 0, "the buffer was never compacted"
    np.testing.assert_allclose(hidden, case.expected(step, "hidden"), rtol=0, atol=10 * TOLERANCE)
    np.testing.assert_array_equal(proposal, case.expected(step, "proposal"))


@pytest.mark.parametrize("name", CASES)
def test_sequences_of_different_length_in_one_batch(name):
    case = load_case(name)
    model, tables = case.model(), case.tables
    steps = [step for step in case.steps if step.width == case.config.block_size]
    anchors = mx.array([step.anchor for step in steps])
    context = model.new_context(len(steps))
    taps = mx.repeat(case.vectors["target_hidden"][None], len(steps), axis=0)
    model.append_context(taps, context, mx.array([step.end for step in steps], dtype=mx.int32))
    hidden = model.hidden(model.block_embeddings(anchors, case.config.block_size, tables), context)
    logits = model.scale_logits(tables.head(hidden[:, 1:]))
    tokens = model.propose(anchors, context, case.config.block_size, tables).tokens
    for row, step in enumerate(steps):
        check(case, step, (hidden[row], logits[row], tokens[row]))


@pytest.mark.parametrize("name", [name for name in CASES if load_case(name).config.version == 2])
def test_a_sampled_walk_has_the_authors_q(name):
    # Noise that leaves no choice but their tokens; q must then be the law they drew from.
    case = load_case(name)
    model = case.model()
    for step in case.steps:
        context = model.new_context()
        model.append_context(case.taps(0, step.end), context, step.end)
        theirs = mx.array(case.expected(step, "sampled.tokens"))[None, :, None]
        proposal = model.propose(
            mx.array([step.anchor]),
            context,
            step.width,
            case.tables,
            temperature=SAMPLED_TEMPERATURE,
            noise=lambda candidates, theirs=theirs: mx.where(candidates == theirs, 1e6, 0.0),
        )
        np.testing.assert_array_equal(proposal.tokens, theirs[..., 0])
        np.testing.assert_array_equal(proposal.candidates[0], case.expected(step, "sampled.candidates"))
        np.testing.assert_allclose(proposal.q[0], case.expected(step, "sampled.q"), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("published", {"causal": (True, True)}),
        ("published", {"sliding_window": 15}),
        ("published", {"sliding_window": 17}),
        ("published", {"rope_theta": 1e4}),
        ("causal", {"causal": (False, False)}),
        ("mixed_v1", {"causal": (False, False, False)}),
        ("wide_block", {"sliding_window": 100}),
    ],
)
def test_the_vectors_tell_a_wrong_config(name, changes):
    case = load_case(name)
    model = case.model(**changes)
    step = case.steps[-1]
    context = model.new_context()
    model.append_context(case.taps(0, step.end), context, step.end)
    hidden, _, _ = draft(case, model, step, context)
    assert np.abs(np.array(hidden) - case.expected(step, "hidden")).max() > 100 * TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_float64_reference_agrees(name):
    case = load_case(name)
    weights = {key: np.array(value) for key, value in mx.load(str(case.folder / "model.safetensors")).items()}
    tables = case.tables
    reference = ReferenceDrafter(case.raw, weights, np.array(tables.embedding), np.array(tables.matrix))
    taps = np.array(case.vectors["target_hidden"])
    for step in case.steps[-3:]:
        output = reference.forward(taps[: step.end], step.anchor, step.width)
        np.testing.assert_allclose(output.hidden, case.expected(step, "hidden"), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(output.logits, case.expected(step, "logits"), rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(reference.greedy_proposal(output, step.anchor), case.expected(step, "proposal"))
        if reference.version_2:
            check_reference_q(case, reference, step, output)


def check_reference_q(case: Case, reference: ReferenceDrafter, step: Step, output: Any) -> None:
    """The authors' q along the authors' own walk."""
    gates = output.hidden[1:] @ reference.weights["candidate_selector.hidden_projection.weight"].T
    codebooks = [reference.weights[f"candidate_selector.{end}_codebook"] for end in ("predecessor", "successor")]
    previous = step.anchor
    for row, token in enumerate(case.expected(step, "sampled.tokens")):
        candidates = case.expected(step, "sampled.candidates")[row]
        scores = pair_scores(output.logits[row], candidates, gates[row], *codebooks, previous)
        q = softmax(scores / SAMPLED_TEMPERATURE)
        np.testing.assert_allclose(q, case.expected(step, "sampled.q")[row], rtol=0, atol=TOLERANCE)
        previous = int(token)
