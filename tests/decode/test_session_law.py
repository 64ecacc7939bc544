"""The law of the first tokens of real sessions (T8, CK-12, end to end).

The session is real (rounds in flight, rollback, positions, seeds), its models are tables, so that thousands of
replies take seconds. `test_law` draws far more from the chooser alone; this shows that a session hands the
chooser the right rows, positions and noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx import DrafterConfig, SamplingConfig
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from dflash2_mlx.drafters.base import Lender
from dflash2_mlx.drafters.dflash2.context import DrafterContext
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.sampling.acceptance import Proposal
from dflash2_mlx.targets.base import PassOutput, TargetSpec
from dflash2_mlx.targets.state import TargetState
from tests import distributions as law
from tests.distributions import TableDrafter, V, p_value
from tests.reference import sampling as reference
from tests.runs import run, slow_unless
from tests.tiny import drafter_config

PROMPT = [0, 2, 4]
LENGTH = 4
HIDDEN = 4
# Logits after a token at a position: a wrong position or row gives another law.
TABLE = 1.5 * np.random.default_rng(3).normal(size=(5, V, V))  # [position mod 5, token, next]


class TableTarget:
    """A target whose logits come from TABLE; its taps are nothing."""

    spec = TargetSpec(
        family="table",
        hidden_size=HIDDEN,
        num_layers=1,
        vocab_size=V,
        embedding_rows=V,
        recurrent=False,
        context_length=None,
        quantization=None,
    )

    def __init__(self) -> None:
        self._table = mx.array(TABLE, dtype=mx.float32)

    def new_state(self, batch: int = 1) -> TargetState:
        return TargetState(batch)

    def forward(
        self, ids: mx.array, state: TargetState, *, taps: Sequence[int] = (), last_only: bool = False
    ) -> PassOutput:
        positions = state.begin(ids.shape[1])
        logits = self._table[positions % 5, ids]
        return PassOutput(logits[:, -1:] if last_only else logits, mx.zeros((*ids.shape, HIDDEN)) if taps else None)

    def commit(self, state: TargetState, keep: int | mx.array) -> None:
        state.commit(keep)

    def embed(self, ids: mx.array) -> mx.array:
        return mx.zeros((*ids.shape, HIDDEN))

    def head(self, hidden: mx.array) -> mx.array:
        return mx.zeros((*hidden.shape[:-1], V))


class TableModel(DraftModel):
    """A drafter that proposes from a table; all it remembers is real."""

    def __init__(self, table: TableDrafter):
        super().__init__(
            DrafterConfig.from_dict(
                drafter_config(
                    hidden_size=HIDDEN,
                    vocab_size=V,
                    num_hidden_layers=1,
                    layer_types=["full_attention"],
                    head_dim=2,
                    num_attention_heads=1,
                    num_key_value_heads=1,
                    intermediate_size=4,
                    conv_group_size=2,
                    selector_rank=2,
                    selector_top_k=V,
                    block_size=4,
                    mask_token_id=0,
                    num_target_layers=1,
                    target_layer_ids=[0],
                )
            )
        )
        self._table = table

    def propose(
        self,
        anchor: mx.array,
        context: DrafterContext,
        width: int,
        lender: Lender,
        *,
        temperature: float = 0.0,
        noise: Callable[[mx.array], mx.array] | None = None,
    ) -> Proposal:
        assert noise is not None
        return law.propose(self._table, anchor, width, temperature, noise)


MEAN = TABLE.mean(axis=0)
DRAFTERS = {
    "good": TableDrafter(MEAN.mean(axis=0), MEAN - MEAN.mean(axis=0), 5),
    "adversarial": TableDrafter(-MEAN.mean(axis=0), -2 * MEAN, 3),
}


def exact_law(sampling: SamplingConfig) -> dict[tuple[int, ...], float]:
    """Probability of every reply of LENGTH tokens, in float64."""
    laws: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for history, mass in laws.items():
            text = [*PROMPT, *history]
            logits = reference.penalise(
                TABLE[(len(text) - 1) % 5, text[-1]],
                PROMPT,
                history,
                logit_bias=sampling.logit_bias,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
            )
            share = reference.law(
                logits,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
            )
            longer.update({(*history, token): mass * p for token, p in enumerate(share) if p > 0})
        laws = longer
    return laws


def draw(session: Session, sampling: SamplingConfig, runs: int) -> tuple[np.ndarray, float]:
    """First tokens of many replies to PROMPT, each with its own seed; and accepted tokens per round."""
    replies, accepted, rounds = [], 0, 0
    for seed in range(runs):
        reply = run(session, Request(PROMPT, LENGTH, sampling, seed=seed, width=4))
        replies.append(reply.tokens)
        accepted += sum(result.num_accepted for result in reply.rounds)
        rounds += len(reply.rounds)
    return np.array(replies), accepted / rounds


def check(drafter: str, temperature: float, mode: str, runs: int, **settings: Any) -> None:
    sampling = SamplingConfig(temperature=temperature, lossless_mode=mode, **settings)
    tokens, accepted = draw(DFlash2Session(TableTarget(), TableModel(DRAFTERS[drafter])), sampling, runs)
    assert p_value(tokens, exact_law(sampling)) > 1e-4
    assert 0.05 < accepted < 2.9


@pytest.mark.parametrize(("drafter", "temperature"), [slow_unless(False, "good", 0.6), ("adversarial", 1.5)])
def test_first_tokens(drafter, temperature):
    # The coupled mode's texts equal plain sampling's token for token: test_coupled.
    check(drafter, temperature, "rejection", 500, top_k=4, frequency_penalty=0.3)


def test_the_exact_law_is_plain_sampling():
    sampling = SamplingConfig(temperature=1.0, top_k=4, repetition_penalty=1.2)
    tokens, _ = draw(PlainSession(TableTarget()), sampling, 600)
    assert p_value(tokens, exact_law(sampling)) > 1e-4
    assert p_value(tokens, exact_law(SamplingConfig(temperature=1.6, top_k=4, repetition_penalty=1.2))) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.8, "repetition_penalty": 1.4}])
def test_first_tokens_of_ten_thousand_replies(drafter, mode, temperature, settings):
    check(drafter, temperature, mode, 10_000, **settings)
