"""How many proposed tokens the target keeps, and which token it adds.

Owns: the acceptance rules, as pure functions of arrays. No model, no cache, no randomness of its own.
Invariant: whether row j is accepted depends on the proposal only up to j, never on later rows.

Reference: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023);
DFlash 2 specification 4.4 and 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


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
