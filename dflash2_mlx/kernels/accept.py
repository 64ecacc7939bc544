"""From the target's logits to what a sampled verify pass keeps of its proposal, and the token it adds.

Owns: the twin (probabilities, noise and rejection over the whole vocabulary), and the choice between it and
metal/accept.metal, which looks at the best logits alone and makes the noise of those ids only. It can do so where the
filters begin with top-k; the numbers are those of the twin's generator. Knows nothing of sessions.

Reference: Leviathan et al. (2023); DFlash 2 specification 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from .. import rng
from ..acceptance import Acceptance, accept_sampled
from ..config import SamplingConfig
from ..rng import Purpose
from ..sampling import log_probabilities
from . import _target_calls
from ._dispatch import KernelMismatch, dispatcher
from ._metal import MAX_CANDIDATES, KernelCall
from .top_candidates import candidate_lists, top_candidates

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
        call = _target_calls.accept(inputs[0].shape, width, vocab)
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
    count, got = dispatcher().run(_target_calls.accept(inputs[0].shape, width, vocab), inputs)
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
