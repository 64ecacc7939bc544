"""Thousands of small conversations at once, drawn by the real chooser and the real walk, and their exact law.

A conversation is one row of a batch: it stands at a position of its own, so all rows share one seed and no
noise. The target is a table of logits given the last two tokens; the drafter is a table too, and can be good,
blind or adversarial. What comes out is compared with the law of plain sampling, computed in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from scipy import stats

from dflash2_mlx.kernels.select_walk import select_walk
from dflash2_mlx.kernels.top_candidates import top_candidates
from dflash2_mlx.sampling.acceptance import Proposal, accept_sampled
from dflash2_mlx.sampling.config import SamplingConfig
from dflash2_mlx.sampling.logits import TokenHistory, log_probabilities
from dflash2_mlx.sampling.rng import Purpose, uniform
from dflash2_mlx.sampling.sampler import TokenChooser
from tests.reference import sampling as reference

V = 6
LENGTH = 3  # tokens compared
PROMPT = (2, 4)
APART = 64  # positions between two conversations
History = tuple[int, ...]

TARGET = 1.5 * np.random.default_rng(11).normal(size=(V, V, V))  # [token before last, last token, next]


@dataclass(frozen=True)
class TableDrafter:
    """Logits of each block row, and edges between neighbours: what a drafter knows, without the network."""

    unary: np.ndarray  # [V]
    edges: np.ndarray  # [V, V], predecessor -> successor
    top_k: int


_MEAN = TARGET.mean(axis=0)
DRAFTERS = {
    # Knows the target's table for the first draft of the first round.
    "exact": TableDrafter(np.zeros(V), TARGET[PROMPT[-1]], V),
    "good": TableDrafter(np.zeros(V), _MEAN, V),
    "good, 4 of 6 candidates": TableDrafter(_MEAN.mean(axis=0), _MEAN - _MEAN.mean(axis=0), 4),
    "uniform": TableDrafter(np.zeros(V), np.zeros((V, V)), V),
    "adversarial": TableDrafter(-_MEAN.mean(axis=0), -2 * _MEAN, 3),
}


def propose(
    drafter: TableDrafter,
    anchor: mx.array,
    width: int,
    temperature: float,
    noise: Callable[[mx.array], mx.array],
) -> Proposal:
    """As `DraftModel.propose`, with tables for the network."""
    logits = mx.broadcast_to(mx.array(drafter.unary, dtype=mx.float32), (anchor.shape[0], width - 1, V))
    candidates, unary = top_candidates(logits, drafter.top_k)
    first = mx.broadcast_to(anchor[:, None, None], (anchor.shape[0], 1, drafter.top_k))
    left = mx.concatenate([first, candidates[:, :-1]], axis=1)
    table = mx.array(drafter.edges, dtype=mx.float32)
    edges = table[left[..., :, None], candidates[..., None, :]]
    walk = select_walk(candidates, unary, edges, temperature=temperature, noise=noise(candidates))
    return Proposal(walk.tokens, candidates, unary, walk.q)


@dataclass
class Outcome:
    """First LENGTH tokens of every conversation, accepted and drafted tokens over all rounds, and how often the
    first draft of the first round was kept."""

    tokens: np.ndarray
    accepted: int
    drafted: int
    first_kept: float


def converse(
    sampling: SamplingConfig,
    drafter: TableDrafter,
    *,
    rows: int,
    width: int = 4,
    seed: int = 1,
    verify: Callable[..., Any] | None = None,
) -> Outcome:
    """Let every conversation run until it has LENGTH tokens.

    `verify` may replace `TokenChooser.choose`, to show that a wrong one is noticed.
    """
    chooser = TokenChooser(sampling, V, seed, list(PROMPT))
    if chooser.history is not None:  # the chooser of a session has a batch of one
        empty = TokenHistory.empty(rows, V)
        empty.in_prompt = mx.broadcast_to(chooser.history.in_prompt, (rows, V))
        chooser.history = empty
    table = mx.array(TARGET, dtype=mx.float32)
    end = mx.arange(rows, dtype=mx.int32) * APART + len(PROMPT) - 1
    before, last = (mx.full((rows,), token, dtype=mx.int32) for token in PROMPT)

    chosen, _ = chooser.choose(table[before, last][:, None], end, None, shared=chooser.shared_noise(end, 1))
    chooser.record(chosen.tokens, mx.ones((rows,), dtype=mx.int32))
    before, last, position = last, chosen.tokens[:, 0], end + 1
    replies = [[int(token)] for token in last.tolist()]
    accepted = drafted = 0
    first_kept = None
    while min(map(len, replies)) < LENGTH:
        shared = chooser.shared_noise(position, width) if sampling.coupled else None
        noise = chooser.draft_noise(position, width - 1, shared)
        proposal = propose(drafter, last, width, sampling.temperature, noise)
        block = mx.concatenate([before[:, None], last[:, None], proposal.tokens], axis=1)
        logits = table[block[:, :-1], block[:, 1:]]
        if verify is None:
            chosen, _ = chooser.choose(logits, position, proposal, shared=shared)
        else:
            chosen = verify(chooser, logits, position, proposal, noise)
        count = chosen.num_accepted + 1
        chooser.record(chosen.tokens, count)
        everything = mx.concatenate([last[:, None], chosen.tokens], axis=1)
        before = mx.take_along_axis(everything, count[:, None] - 1, axis=1)[:, 0]
        last = mx.take_along_axis(everything, count[:, None], axis=1)[:, 0]
        position = position + count
        for reply, tokens, n in zip(replies, chosen.tokens.tolist(), count.tolist(), strict=True):
            reply.extend(tokens[:n])
        if first_kept is None:
            first_kept = float((chosen.num_accepted > 0).mean())
        accepted += int(chosen.num_accepted.sum())
        drafted += rows * (width - 1)
    return Outcome(np.array([reply[:LENGTH] for reply in replies]), accepted, drafted, first_kept)


# Wrong verifiers, each a fault that a port had.


def q_at_another_temperature(
    chooser: TokenChooser, logits: mx.array, start: mx.array, proposal: Proposal, _: Any
) -> Any:
    """Test with the q of temperature 1 what was drawn at another."""
    scores = mx.log(proposal.q) * chooser.sampling.temperature
    wrong = Proposal(proposal.tokens, proposal.candidates, proposal.unary, mx.softmax(scores, axis=-1))
    return chooser.choose(logits, start, wrong)[0]


def residual_from_draft_noise(
    chooser: TokenChooser, logits: mx.array, start: mx.array, proposal: Proposal, noise: Callable[[mx.array], mx.array]
) -> Any:
    """Draw the replacement with the noise that drew the proposal."""
    log_p = log_probabilities(chooser._process(logits, proposal), chooser.sampling)
    drafted = proposal.tokens.shape[1]
    positions = start[:, None] + mx.arange(1, drafted + 1, dtype=mx.int32)
    uniforms = uniform(chooser.keys, Purpose.ACCEPT, positions, 1)[..., 0]
    reused = mx.put_along_axis(mx.zeros(log_p[:, :-1].shape), proposal.candidates, noise(proposal.candidates), axis=-1)
    reused = mx.concatenate([reused, reused[:, -1:]], axis=1)
    return accept_sampled(proposal.tokens, proposal.candidates, proposal.q, log_p, uniforms, reused)


def p_without_q(chooser: TokenChooser, logits: mx.array, start: mx.array, proposal: Proposal, _: Any) -> Any:
    """Accept with p alone instead of p / q."""
    ones = mx.ones_like(proposal.q)
    return chooser.choose(logits, start, Proposal(proposal.tokens, proposal.candidates, proposal.unary, ones))[0]


# The law of plain sampling, and the test.


def next_law(sampling: SamplingConfig, history: History) -> np.ndarray:
    """Law of the token after the prompt and `history`, in float64."""
    before, last = (*PROMPT, *history)[-2:]
    logits = reference.penalise(
        TARGET[before, last],
        PROMPT,
        history,
        logit_bias=sampling.logit_bias,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
    )
    return reference.law(
        logits, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
    )


def plain_law(sampling: SamplingConfig) -> dict[History, float]:
    """Probability of every run of LENGTH tokens."""
    law: dict[History, float] = {(): 1.0}
    for _ in range(LENGTH):
        law = {
            (*history, token): mass * share
            for history, mass in law.items()
            for token, share in enumerate(next_law(sampling, history))
            if share > 0
        }
    return law


def p_value(tokens: np.ndarray, law: Mapping[History, float]) -> float:
    """Chi-square of the observed runs of tokens; runs expected fewer than five times share a cell."""
    total = len(tokens)
    seen = dict.fromkeys(law, 0)
    for run, count in zip(*np.unique(tokens, axis=0, return_counts=True), strict=True):
        key = tuple(int(token) for token in run)
        if key not in seen:
            return 0.0  # impossible under the law
        seen[key] = int(count)
    ordered = sorted(law, key=lambda run: law[run])
    observed, expected = [], []
    for small, group in itertools.groupby(ordered, key=lambda run: law[run] * total < 5):
        runs = list(group)
        cells = [runs] if small else [[run] for run in runs]
        observed.extend(sum(seen[run] for run in cell) for cell in cells)
        expected.extend(sum(law[run] for run in cell) * total for cell in cells)
    if len(expected) > 1 and expected[0] < 5:  # the shared cell may itself be small
        observed[1] += observed.pop(0)
        expected[1] += expected.pop(0)
    scale = total / sum(expected)
    return float(stats.chisquare(observed, [share * scale for share in expected]).pvalue)
