"""From the target's logits to the tokens a pass commits.

Owns: the per-request choice of acceptance rule and the noise, history and bias it needs. Plain decoding and
verify call the same `choose`. Knows nothing of caches or models.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from ..kernels.top_candidates import top_candidates
from . import rng
from .acceptance import Acceptance, Drafted, Proposal, accept, accept_greedy
from .config import SamplingConfig
from .logits import NEVER, TokenHistory, bias_vector, log_probabilities, process_logits, token_log_probs
from .rng import Purpose, SlotNoise


class TokenChooser:
    """Sampling of one request.

    Args:
        sampling: the request's settings.
        vocab_size: columns of the target's logits.
        seed: always a number here; whoever has none draws one.
        prompt: token ids that count as prompt for the repetition penalty.
    """

    def __init__(self, sampling: SamplingConfig, vocab_size: int, seed: int, prompt: list[int]):
        self.sampling = sampling
        self.vocab_size = vocab_size
        self.bias = bias_vector(sampling, vocab_size)
        self.keys = None if sampling.greedy else rng.base_keys(seed)
        self.history = None
        if sampling.needs_history:
            self.history = TokenHistory.empty(1, vocab_size)
            ids = mx.array(countable(prompt, vocab_size), dtype=mx.int32)
            self.history.in_prompt[:, ids] = True

    def shared_noise(self, start: mx.array, rows: int) -> mx.array | None:
        """Gumbel noise of the target's own draws: [B, rows, V] for the tokens after positions start.. ."""
        if self.keys is None:
            return None
        return rng.gumbel(self.keys, Purpose.TARGET, _predicted(start, rows), self.vocab_size)

    def draft_noise(self, start: mx.array, rows: int, shared: mx.array | None) -> Callable[[mx.array], mx.array] | None:
        """Noise for the drafter's `rows` draws, as a function of its candidates [B, N, K]."""
        if self.keys is None:
            return None
        keys = self.keys
        if shared is not None:
            return lambda candidates: mx.take_along_axis(shared[:, :rows], candidates, axis=-1)
        return SlotNoise(lambda shape: rng.gumbel(keys, Purpose.DRAFT, _predicted(start, rows), shape[-1]))

    def choose(
        self,
        logits: mx.array,
        start: mx.array,
        proposal: Proposal | None,
        *,
        shared: mx.array | None = None,
        mask: mx.array | None = None,
    ) -> tuple[Acceptance, mx.array]:
        """Accept or replace a proposal; without one, choose the next token.

        Shapes:
            logits: [B, L, V]; row i predicts position start + 1 + i
            start:  [B] int32, position of row 0
            shared: [B, L, V], from `shared_noise`; needed except in greedy and rejection mode
            mask:   [B, L, V] bool, False forbids
        Returns:
            the acceptance (tokens [B, L]) and the processed logits [B, L, V] float32
        """
        processed = self._process(logits, proposal)
        if mask is not None:
            processed = mx.where(mask, processed, NEVER)
        if self.sampling.greedy:
            choices = mx.argmax(processed, axis=-1).astype(mx.int32)
        else:
            if proposal is not None and shared is None:
                changed = self.history is not None or self.bias is not None or mask is not None
                return self._reject(processed if changed else logits, start, proposal), processed
            assert shared is not None
            choices = mx.argmax(log_probabilities(processed, self.sampling) + shared, axis=-1).astype(mx.int32)
        if proposal is None:
            return Acceptance(mx.zeros(start.shape, dtype=mx.int32), choices), processed
        return accept_greedy(proposal.tokens, choices), processed

    def record(self, tokens: mx.array, count: mx.array) -> None:
        """Count the first `count` [B] of `tokens` [B, L] as generated."""
        if self.history is not None:
            self.history.add(tokens, count)

    def _process(self, logits: mx.array, proposal: Proposal | None) -> mx.array:
        if self.history is None:
            return process_logits(logits, self.sampling, bias=self.bias)
        counts = self.history.counts[:, None] if proposal is None else self.history.rows(proposal.tokens)
        return process_logits(logits, self.sampling, bias=self.bias, in_prompt=self.history.in_prompt, counts=counts)

    def _reject(self, logits: mx.array, start: mx.array, proposal: Proposal) -> Acceptance:
        assert self.keys is not None and proposal.q is not None
        drafted = Drafted(proposal.tokens, proposal.candidates, proposal.q)
        return accept(logits, start, drafted, self.sampling, self.keys)


def countable(prompt: list[int], vocab_size: int) -> list[int]:
    """Distinct tokens of a prompt that the head knows, in order.

    An embedding may have more rows than the head, and MLX does not check the bounds of a write.
    """
    return sorted({token for token in prompt if token < vocab_size})


def _predicted(start: mx.array, rows: int) -> mx.array:
    """Absolute positions the rows of a pass predict: [B, rows]."""
    return start[:, None] + mx.arange(1, rows + 1, dtype=mx.int32)


def gather_log_probs(processed: mx.array, tokens: mx.array, top: int) -> tuple[mx.array, mx.array, mx.array]:
    """Reported log-probabilities: of `tokens` [B, L], and ids and values [B, L, top] of the best ones."""
    scores = token_log_probs(processed)
    own = mx.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    ids, values = top_candidates(scores, max(top, 1))
    return own, ids[..., :top], values[..., :top]
