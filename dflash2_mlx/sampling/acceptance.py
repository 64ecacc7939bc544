"""How many proposed tokens the target keeps, and which token it adds.

Owns: proposals, the acceptance rules as functions of arrays, and the choice of metal/accept.metal for sampled
acceptance where the filters begin with top-k: it looks at the best logits alone, with the noise of the same generator.
Invariant: whether row j is accepted depends on the proposal only up to j, never on later rows.

Reference: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); docs/dflash2.md 4.4,
4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ..kernels.accept import accept_call
from ..kernels.call import KernelCall
from ..kernels.dispatch import KernelMismatch, dispatcher
from ..kernels.top_candidates import MAX_CANDIDATES, candidate_lists, top_candidates
from . import rng
from .config import SamplingConfig
from .logits import log_probabilities
from .rng import Purpose


@dataclass(frozen=True)
class Acceptance:
    """Result of one verify.

    Shapes:
        num_accepted: [B] int32, 0..N
        tokens:       [B, N + 1] int32; the first num_accepted are proposed tokens, then the bonus;
                      what follows is filler
    """

    num_accepted: mx.array
    tokens: mx.array


def accept_greedy(proposal: mx.array, choices: mx.array) -> Acceptance:
    """Keep the longest prefix the target would have chosen itself.

    Serves greedy decoding (choices = argmax) and coupled sampling (choices = the target's own draws).

    Shapes:
        proposal: [B, N]     int32
        choices:  [B, N + 1] int32, the target's token after each row
    """
    matches = (proposal == choices[:, :-1]).astype(mx.int32)
    num_accepted = mx.cumprod(matches, axis=1).sum(axis=1)
    # Where a proposal was accepted it equals the choice, so the choices are the committed tokens.
    return Acceptance(num_accepted, choices)


def accept_sampled(
    proposal: mx.array,
    candidates: mx.array,
    q: mx.array,
    log_p: mx.array,
    uniforms: mx.array,
    residual_noise: mx.array,
) -> Acceptance:
    """Rejection sampling: accept d while u * q(d) < p(d), replace the first failure from max(p - q, 0).

    Shapes:
        proposal:       [B, N]        int32
        candidates:     [B, N, K]     int32, distinct per row
        q:              [B, N, K]     float32, the distribution each proposed token was drawn from
        log_p:          [B, N + 1, V] float32, -inf where p = 0
        uniforms:       [B, N]        float32 in [0, 1)
        residual_noise: [B, N + 1, V] or [B, V] float32 standard Gumbel, independent of the draws of `proposal`
    """
    length = proposal.shape[1]
    p_drawn = mx.exp(mx.take_along_axis(log_p[:, :-1], proposal[..., None], axis=-1)[..., 0])
    q_drawn = mx.where(candidates == proposal[..., None], q, 0.0).sum(axis=-1)
    accepted = (uniforms * q_drawn < p_drawn).astype(mx.int32)
    num_accepted = mx.cumprod(accepted, axis=1).sum(axis=1)

    row = num_accepted[:, None, None]
    p_row = mx.exp(mx.take_along_axis(log_p, row, axis=1)[:, 0])
    inside = mx.minimum(row, length - 1)
    ids = mx.take_along_axis(candidates, inside, axis=1)[:, 0]
    q_row = mx.take_along_axis(q, inside, axis=1)[:, 0]
    q_row = mx.where(num_accepted[:, None] < length, q_row, 0.0)  # nothing was rejected: the bonus is drawn from p
    reduced = mx.take_along_axis(p_row, ids, axis=-1) - q_row
    residual = mx.put_along_axis(p_row, ids, mx.maximum(reduced, 0.0), axis=-1)
    # Rounding can leave no mass at all; p itself is then the right law.
    residual = mx.where(residual.sum(axis=-1, keepdims=True) > 0, residual, p_row)
    if residual_noise.ndim == 3:
        residual_noise = mx.take_along_axis(residual_noise, row, axis=1)[:, 0]
    bonus = mx.argmax(mx.log(residual) + residual_noise, axis=-1).astype(mx.int32)

    padded = mx.concatenate([proposal, bonus[:, None]], axis=1)
    tokens = mx.where(mx.arange(length + 1)[None] < num_accepted[:, None], padded, bonus[:, None])
    return Acceptance(num_accepted, tokens)


@dataclass(frozen=True)
class Proposal:
    """What one draft pass offers.

    Shapes:
        tokens:     [B, N]    int32
        candidates: [B, N, K] int32, in candidate order
        unary:      [B, N, K] float32 logits of the candidates
        q:          [B, N, K] float32, what each token was drawn from; None when greedy
    """

    tokens: mx.array
    candidates: mx.array
    unary: mx.array
    q: mx.array | None


NAME = "accept"


_TEST_NUMBERS = 2**22  # logits of a self-test


@dataclass(frozen=True)
class Drafted:
    """Shapes: tokens [B, N] int32; candidates [B, N, K] int32, distinct; q [B, N, K] float32, see `Proposal`."""

    tokens: mx.array
    candidates: mx.array
    q: mx.array


def accept(logits: mx.array, start: mx.array, drafted: Drafted, sampling: SamplingConfig, keys: mx.array) -> Acceptance:
    """Rejection sampling of one verify pass.

    Shapes:
        logits: [B, N + 1, V] after bias and penalties, any floating dtype; row i decides about position start + 1 + i
        start:  [B] int32
        keys:   [4, 2] uint32, from `rng.base_keys`
    """
    rows, vocab, width = *logits.shape[1:], drafted.candidates.shape[-1]
    if wanted(sampling, rows, vocab, width):
        inputs = _inputs(logits, start, drafted, sampling, keys)
        call = accept_call(inputs[0].shape, width, vocab)
        if dispatcher().passes(call, inputs, lambda: _self_test(call, logits.dtype, vocab, width)):
            return Acceptance(*dispatcher().run(call, inputs))
    return accept_twin(logits, start, drafted, sampling, keys)


def accept_twin(
    logits: mx.array, start: mx.array, drafted: Drafted, sampling: SamplingConfig, keys: mx.array
) -> Acceptance:
    """The twin of `accept`, shapes as there; it serves any filters, with noise for the whole vocabulary."""
    log_p = log_probabilities(logits.astype(mx.float32), sampling)
    rows, vocab = log_p.shape[1:]
    positions = start[:, None] + mx.arange(1, rows + 1, dtype=mx.int32)
    uniforms = rng.uniform(keys, Purpose.ACCEPT, positions[:, :-1], 1)[..., 0]
    residual = rng.gumbel(keys, Purpose.RESIDUAL, positions, vocab)
    return accept_sampled(drafted.tokens, drafted.candidates, drafted.q, log_p, uniforms, residual)


def wanted(sampling: SamplingConfig, rows: int, vocab_size: int, width: int) -> bool:
    """Whether the kernel should run for these settings, rows of a pass and candidates of the drafter."""
    if not 0 < sampling.top_k <= most_kept(vocab_size) or not 0 < width <= MAX_CANDIDATES:
        return False
    return dispatcher().chooses_metal(NAME, key_of(rows, vocab_size, width))


def key_of(rows: int, vocab_size: int, width: int) -> str:
    """Name of this shape in races. Requests differ in top-k; the most there can be is raced and stands for all."""
    return f"{rows}x{vocab_size} top up to {most_kept(vocab_size)}, {width} candidates"


def most_kept(vocab_size: int) -> int:
    """The largest top-k the kernel can serve."""
    return min(MAX_CANDIDATES, vocab_size - 1)


def _inputs(
    logits: mx.array, start: mx.array, drafted: Drafted, sampling: SamplingConfig, keys: mx.array
) -> tuple[mx.array, ...]:
    temperature = sampling.temperature
    if logits.dtype == mx.float32:
        # Division may make neighbouring float32 numbers equal, and then the lower id counts, as everywhere.
        logits, temperature = logits / temperature, 1.0
    lists = candidate_lists(logits, sampling.top_k)  # raced as a part of this, never alone
    settings = mx.array([temperature, sampling.top_p, sampling.min_p], dtype=mx.float32)
    return lists.values, lists.ids, drafted.tokens, drafted.candidates, drafted.q, start, keys, settings


def _self_test(call: KernelCall, dtype: mx.Dtype, vocab: int, width: int) -> None:
    """As many sequences as memory bears; few different logits, so that ties occur."""
    top_k, rows = dict(call.template)["K"], call.output_shapes[1][1]
    batch = max(2, min(48, _TEST_NUMBERS // (rows * vocab)))
    what = random_pass((batch, rows, vocab), dtype, width, mx.random.key(0))
    sampling = SamplingConfig(temperature=0.7, top_k=top_k, top_p=0.9, min_p=0.02)
    seeds = rng.base_keys(3)
    inputs = _inputs(*what, sampling, seeds)
    count, got = dispatcher().run(accept_call(inputs[0].shape, width, vocab), inputs)
    want = accept_twin(*what, sampling, seeds)
    same = (count == want.num_accepted) & (got == want.tokens).all(axis=1)
    # Sums in another order may turn one decision in very many.
    if not (same.sum() >= batch - batch // 16).item():
        raise KernelMismatch(f"{NAME}: other tokens than the twin's")


def random_pass(
    shape: tuple[int, int, int], dtype: mx.Dtype, width: int, key: mx.array
) -> tuple[mx.array, mx.array, Drafted]:
    """Logits [B, L, V] with ties, first positions, and what was drafted near them, `width` candidates each."""
    batch, keys = shape[0], mx.random.split(key, 3)
    logits = (mx.round(mx.random.normal(shape, key=keys[0]) * 8) / 8).astype(dtype)
    # Where the drafter has more candidates than the target allows, some are refused for certain.
    candidates, _ = top_candidates(logits[:, :-1], width)
    scores = mx.random.normal(candidates.shape, key=keys[1])
    chosen = mx.argmax(scores + mx.random.gumbel(scores.shape, key=keys[2]), axis=-1, keepdims=True)
    tokens = mx.take_along_axis(candidates, chosen, axis=-1)[..., 0]
    start = mx.arange(batch, dtype=mx.int32) * 1000
    return logits, start, Drafted(tokens, candidates, mx.softmax(scores, axis=-1))
