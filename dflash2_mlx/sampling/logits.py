"""Logits to probabilities: the one definition that plain decoding and verification share.

Owns: bias and penalties, temperature, top-k, top-p, min-p, in that order, and the token history they
read. Knows nothing of models, caches or drafting. Invariant: p of a verified row and p of the same row
in plain decoding come from the same call, so losslessness never depends on which path ran.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from ..kernels.top_candidates import top_candidates
from .config import SamplingConfig

NEVER = -mx.inf


@dataclass
class TokenHistory:
    """Which tokens came before, on the device.

    Shapes:
        in_prompt: [B, V] bool, tokens of the prompt
        counts:    [B, V] int32, how often each token was generated
    """

    in_prompt: mx.array
    counts: mx.array

    @classmethod
    def empty(cls, batch: int, vocab_size: int) -> TokenHistory:
        """Of sequences of which nothing is known yet."""
        return cls(mx.zeros((batch, vocab_size), dtype=mx.bool_), mx.zeros((batch, vocab_size), dtype=mx.int32))

    def rows(self, proposal: mx.array) -> mx.array:
        """Counts as each row of a block sees them: row i has seen the first i proposed tokens.

        Shapes:
            proposal: [B, N] int32
        Returns:
            [B, N + 1, V] int32
        """
        ids = mx.arange(self.counts.shape[-1])
        hits = (proposal[..., None] == ids).astype(mx.int32)
        seen = mx.concatenate([mx.zeros_like(hits[:, :1]), mx.cumsum(hits, axis=1)], axis=1)
        return self.counts[:, None] + seen

    def add(self, tokens: mx.array, count: mx.array) -> None:
        """Count the first `count` [B] of `tokens` [B, L] as generated."""
        ids = mx.arange(self.counts.shape[-1])
        live = mx.arange(tokens.shape[1])[None] < count[:, None]
        hits = (tokens[..., None] == ids) & live[..., None]
        self.counts = self.counts + hits.sum(axis=1).astype(mx.int32)


def bias_vector(config: SamplingConfig, vocab_size: int) -> mx.array | None:
    """`logit_bias` as a dense float32 [V] row, or None without one."""
    if not config.logit_bias:
        return None
    row = mx.zeros((vocab_size,), dtype=mx.float32)
    ids = mx.array(list(config.logit_bias), dtype=mx.int32)
    row[ids] = mx.array([float(b) for b in config.logit_bias.values()], dtype=mx.float32)
    return row


def process_logits(
    logits: mx.array,
    config: SamplingConfig,
    *,
    bias: mx.array | None = None,
    in_prompt: mx.array | None = None,
    counts: mx.array | None = None,
) -> mx.array:
    """Bias and penalties, the part of p that greedy decoding needs too.

    Shapes:
        logits:    [B, L, V] any floating dtype
        bias:      [V] float32 or None
        in_prompt: [B, V] bool, needed when a penalty is on
        counts:    [B, L, V] int32, needed when a penalty is on
    Returns:
        [B, L, V] float32
    Reference: repetition penalty of CTRL (Keskar et al., 2019) over prompt and reply; presence and
    frequency penalties as in the OpenAI API, over the reply.
    """
    logits = logits.astype(mx.float32)
    if bias is not None:
        logits = logits + bias
    if not config.needs_history:
        return logits
    assert in_prompt is not None and counts is not None
    if config.repetition_penalty != 1.0:
        seen = in_prompt[:, None] | (counts > 0)
        factor = config.repetition_penalty
        logits = mx.where(seen, mx.where(logits > 0, logits / factor, logits * factor), logits)
    if config.presence_penalty != 0.0:
        logits = logits - config.presence_penalty * (counts > 0).astype(mx.float32)
    if config.frequency_penalty != 0.0:
        logits = logits - config.frequency_penalty * counts.astype(mx.float32)
    return logits


def log_probabilities(logits: mx.array, config: SamplingConfig) -> mx.array:
    """log p of processed logits: temperature, top-k, top-p, min-p; -inf for what was cut.

    top-k keeps exactly k tokens (equal logits: the lower id stays). top-p keeps a token while the mass
    of the better ones is below `top_p`. min-p keeps tokens of at least `min_p` times the best one's mass.

    Shapes:
        logits: [..., V] float32, from `process_logits`
    Returns:
        [..., V] float32, normalised
    """
    scaled = logits / config.temperature
    size = scaled.shape[-1]
    if 0 < config.top_k < size:
        ids, values = top_candidates(scaled, config.top_k)
        kept = _cut_sorted(values, config)
        return mx.put_along_axis(mx.full(scaled.shape, NEVER), ids, kept, axis=-1)
    if config.top_p < 1.0:
        order = mx.argsort(-scaled, axis=-1)
        kept = _cut_sorted(mx.take_along_axis(scaled, order, axis=-1), config)
        return mx.put_along_axis(mx.full(scaled.shape, NEVER), order, kept, axis=-1)
    if config.min_p > 0.0:
        floor = mx.max(scaled, axis=-1, keepdims=True) + mx.log(mx.array(config.min_p))
        scaled = mx.where(scaled >= floor, scaled, NEVER)
    return _log_softmax(scaled)


def _cut_sorted(values: mx.array, config: SamplingConfig) -> mx.array:
    """top-p and min-p on values [..., n] sorted descending; returns log p with -inf for the rest."""
    if config.top_p < 1.0:
        probs = mx.softmax(values, axis=-1)
        before = mx.cumsum(probs, axis=-1) - probs
        first = mx.arange(values.shape[-1]) == 0  # rounding must never cut the best token
        values = mx.where((before < config.top_p) | first, values, NEVER)
    if config.min_p > 0.0:
        floor = values[..., :1] + mx.log(mx.array(config.min_p))
        values = mx.where(values >= floor, values, NEVER)
    return _log_softmax(values)


def _log_softmax(values: mx.array) -> mx.array:
    return values - mx.logsumexp(values, axis=-1, keepdims=True)


def token_log_probs(logits: mx.array) -> mx.array:
    """Log-probabilities reported to users, [..., V] as the logits are.

    They are those after bias and penalties, before temperature and cuts.
    """
    return _log_softmax(logits)
