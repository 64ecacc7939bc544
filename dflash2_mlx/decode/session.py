"""One conversation with one target: prompts are read, and replies decoded in rounds.

A round of DFlash 2 has five steps; `Session._round` is their order, from top to bottom:

1. draft: from the newest token (the anchor) and its context, the drafter proposes N tokens in one pass;
2. verify: the target passes once over the anchor and the proposal, which gives logits for N + 1 next tokens;
3. accept: the sampler keeps proposed tokens as long as the target agrees, and adds one token of the target's own;
4. cut: the block ends at a stop token or at the limit; what the host will read is queued;
5. commit: rows of kept tokens stay in the KV cache and in the drafter's context, the others are rolled back.

Without a drafter nothing is proposed, and the same steps are plain decoding, a token for each pass.

The host never waits inside a round: round n + 1 is built and handed over before the tokens of round n are read, so
lengths, counts of accepted tokens, anchor, stop tokens and the limit are all arrays on the device. Two things wait, and
say so: the reading of a prompt, between its chunks, and a constraint, which must see the proposal to mask the rows
after it.

Knows nothing of text, tokenizers or stop strings. Reference: docs/dflash2.md 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..drafters.base import Drafter
from ..errors import LogitsError
from ..sampling.acceptance import Acceptance, Proposal
from ..sampling.constraints import constraint_rows
from ..sampling.sampler import TokenChooser, gather_log_probs
from ..targets.base import Target
from .memory import Memory, SessionSnapshot
from .request import PrefillProgress, Request, RoundResult, TokenLogprob

# The moments of a round that a probe is told of, with the arrays made since the one before.
BEGUN, DRAFTED, BUILT, QUEUED, COMMITTED, READ = "begun", "drafted", "built", "queued", "committed", "read"
Probe = Callable[[str, Sequence[mx.array]], None]


class Session:
    """Makes one reply after another: with a drafter by DFlash 2, without one a token at a time.

    Args:
        target: what decides every token.
        drafter: what proposes them; None decodes plainly.
        probe: is told of the moments of each round; for measurements.

    Attributes:
        tokens: prompt and reply so far, as far as the host knows.
        memory: rows of the first `memory.position` of them.
        finish_reason: of the latest reply; None while it is being made.
        cached_tokens: how many of the latest prompt had been read before.
    """

    def __init__(self, target: Target, drafter: Drafter | None = None, *, probe: Probe | None = None):
        self.target, self.drafter = target, drafter
        self.memory = Memory(target, drafter)
        self.finish_reason: str | None = None
        self.cached_tokens = 0
        self._taps = () if drafter is None else drafter.config.target_layer_ids
        self._probe = probe
        self._pending: deque[QueuedPass] = deque()
        self._request: Request | None = None
        self._generated = 0
        self._last_count = 0  # tokens of the result read last

    @property
    def tokens(self) -> list[int]:
        return self.memory.tokens

    @property
    def busy(self) -> bool:
        """Whether a reply is being made."""
        return self._request is not None

    # The life of a request.

    def begin(self, request: Request) -> None:
        """Start a reply. Rows of an earlier turn that the new prompt shares are kept, not read again."""
        self.finish()
        self.cached_tokens = self.memory.begin(request.prompt, request.boundaries)
        self._request, self.finish_reason, self._generated = request, None, 0
        self._chooser = TokenChooser(request.sampling, self.target.spec.vocab_size, request.seed, request.prompt)
        self._stops = mx.array(sorted(request.stop_token_ids) or [-1], dtype=mx.int32)
        self._anchor = mx.zeros((1,), dtype=mx.int32)
        self._remaining = mx.full((1,), request.max_tokens, dtype=mx.int32)
        self._done = mx.zeros((1,), dtype=mx.bool_)

    def step(self) -> PrefillProgress | RoundResult | None:
        """Do one piece of work: a prompt chunk, or queue a round and read the one before. None when finished.

        Raises:
            LogitsError: the target's numbers are not finite; the session has forgotten everything.
        """
        request = self._request
        if request is None or self.finish_reason is not None:
            return None
        if self.memory.position < len(request.prompt) and not self._pending:
            self._read_prompt(request)
            return PrefillProgress(self.memory.position, len(request.prompt), self.cached_tokens)
        if self._pending and self._pending[0].first:
            return self._read(request)  # at once: nothing heavy was queued with it, and its reader waits
        # A constraint must know all tokens before it masks the next ones: one round at a time.
        ahead = 0 if request.constraint is not None else 1
        while len(self._pending) <= ahead and self._may_queue(request):
            self._round(request)
        return self._read(request)

    def finish(self, keep: int | None = None, reason: str | None = None) -> None:
        """End the request and bring the memory to what was committed.

        Args:
            keep: tokens of the result read last that count; None keeps all of them.
            reason: why, where the session itself did not find out.
        """
        if self._request is None:
            return
        in_flight = sum(not queued.first for queued in self._pending)
        self._pending.clear()
        self.memory.drop(in_flight, 0 if keep is None else self._last_count - keep, self._last_count)
        if self.memory.position < len(self._request.prompt) - 1:  # cancelled while the prompt was being read
            self.memory.tokens = self.memory.tokens[: self.memory.position]
        self.finish_reason = reason or self.finish_reason or "cancelled"
        self._request = None

    def abandon(self) -> None:
        """After an error inside a step: nothing of the memory can be trusted, so forget it."""
        self._pending.clear()
        self._request = None
        self.finish_reason = "error"
        self.memory.clear()

    def snapshot(self, *, packed: bool = False) -> SessionSnapshot:
        """What the session knows; costs one copy of the buffers, at the next write or, packed, at once.

        Args:
            packed: copy now, without the buffers' spare room and the rows nobody can see any more.
        Raises:
            RuntimeError: while a reply is being made; packed, between two prompt chunks, is allowed.
        """
        if self._pending or (self.busy and (not packed or self._generated)):
            raise RuntimeError("snapshot: got a running reply, expected a finished one")
        read = self.memory.position if self.busy else None
        return self.memory.snapshot(self.tokens[:read], packed=packed)

    def restore(self, snapshot: SessionSnapshot) -> None:
        """Go back to a snapshot of this kind of session; the snapshot stays usable."""
        self.finish()
        self.memory.restore(snapshot)

    # The prompt.

    def _read_prompt(self, request: Request) -> None:
        """Pass over the next chunk of the prompt; the last one gives the first token of the reply."""
        start = self.memory.position
        end = min(start + request.prefill_chunk, len(request.prompt))
        end = min([end, *(boundary for boundary in request.boundaries if boundary > start)])
        ids = mx.array([request.prompt[start:end]], dtype=mx.int32)
        out = self.target.forward(ids, self.memory.state, taps=self.memory.prompt_taps(end), last_only=True)
        self.memory.read_prompt(out.taps, end - start)
        if end < len(request.prompt):
            # A snapshot is taken here, long before a token tells: nothing may be kept of numbers that are not finite.
            if end in request.boundaries and not mx.isfinite(best_logits(out.logits)).all().item():
                raise self._not_finite(out.logits.dtype)
            return
        self.memory.end_prompt()
        mask = None
        if request.constraint is not None:
            mask = constraint_rows(request.constraint, [], self.target.spec.vocab_size)
        last = mx.array([end - 1], dtype=mx.int32)
        shared = self._chooser.shared_noise(last, 1)
        chosen, processed = self._chooser.choose(out.logits, last, None, shared=shared, mask=mask)
        self._hand_over(request, out.logits, chosen, None, processed, first=True)

    # A round.

    def _may_queue(self, request: Request) -> bool:
        """Each pass on its way commits at least one token: no use queueing beyond the limit."""
        return self._generated + len(self._pending) < request.max_tokens

    def _round(self, request: Request) -> None:
        """Build one round on the device and hand it over; nothing here waits, but for a constraint."""
        self._tell(BEGUN)
        start = self.memory.state.length  # [B] int32
        proposal, shared = self._draft(request, start)  # 1. draft: [B, N] tokens; None is plain decoding
        mask = self._mask(request, proposal)

        ids = self._anchor[:, None]  # 2. verify: [B, 1 + N] ids -> [B, 1 + N, V] logits
        if proposal is not None:
            ids = mx.concatenate([ids, proposal.tokens], axis=1)
        out = self.target.forward(ids, self.memory.state, taps=self._taps)

        if shared is None and proposal is None:  # 3. accept
            shared = self._chooser.shared_noise(start, 1)
        chosen, processed = self._chooser.choose(out.logits, start, proposal, shared=shared, mask=mask)

        self._tell(BUILT)
        kept = self._hand_over(request, out.logits, chosen, proposal, processed)  # 4. cut, and send to the host
        self._tell(QUEUED, self._pending[-1].packed)

        # 5. commit. Without a proposal only committed tokens are fed, so the row always stays; `finish` goes back if
        # need be.
        self.memory.commit(out.taps, 1 if proposal is None else kept)
        if self._probe is not None:
            self._tell(COMMITTED, *self.memory.arrays())

    def _draft(self, request: Request, start: mx.array) -> tuple[Proposal | None, mx.array | None]:
        """What the drafter proposes after the anchor, and the noise it shares with the target where it does.

        Coupled sampling draws both from the same noise, which makes them agree more often: docs/dflash2.md 4.5.
        """
        if self.drafter is None or self.memory.context is None:
            return None, None
        width = request.width if request.policy is None else request.policy.width()
        assert 1 <= width <= request.width, "a width policy left its range"
        if width == 1:
            return None, None
        sampling, shared = request.sampling, None
        if not sampling.greedy and sampling.coupled:
            shared = self._chooser.shared_noise(start, width)
        proposal = self.drafter.propose(
            self._anchor,
            self.memory.context,
            width,
            self.target,
            temperature=0.0 if sampling.greedy else sampling.temperature,
            noise=self._chooser.draft_noise(start, width - 1, shared),
        )
        self._tell(DRAFTED, proposal.tokens)
        return proposal, shared

    def _mask(self, request: Request, proposal: Proposal | None) -> mx.array | None:
        """Tokens that a constraint allows, [B, 1 + N, V]; the host must see the proposal for it, and waits."""
        if request.constraint is None:
            return None
        proposed = [] if proposal is None else host_row(proposal.tokens)
        return constraint_rows(request.constraint, proposed, self.target.spec.vocab_size)

    def _hand_over(
        self,
        request: Request,
        logits: mx.array,
        chosen: Acceptance,
        proposal: Proposal | None,
        processed: mx.array,
        *,
        first: bool = False,
    ) -> mx.array:
        """Cut at stop token and limit, move the anchor, and queue what the host will read.

        Shapes:
            logits, processed: [B, L, V], as the target gave them and as the tokens were chosen by
        Returns:
            how many tokens stay, [B] int32
        """
        tokens = chosen.tokens
        drafted = tokens[:, :0] if proposal is None else proposal.tokens
        packed, kept, self._anchor, self._remaining, self._done = cut(
            tokens,
            chosen.num_accepted,
            drafted,
            best_logits(logits),
            self._stops,
            self._anchor,
            self._remaining,
            self._done,
        )
        self._chooser.record(tokens, kept)
        logprobs = None
        if request.logprobs is not None:
            logprobs = gather_log_probs(processed, tokens, request.logprobs)
            mx.async_eval(packed, *logprobs)
        else:
            # A call of its own: reading an array waits for the whole call it was queued in.
            mx.async_eval(packed)
        self._pending.append(QueuedPass(packed, tokens.shape[1], first, logits.dtype, logprobs))
        return kept

    def _read(self, request: Request) -> RoundResult:
        """Wait for the oldest pass in flight; the only place where a round's results reach the host."""
        queued = self._pending.popleft()
        count, num_accepted, spoilt, *rest = host_row(queued.packed)
        if spoilt:
            raise self._not_finite(queued.dtype)
        tokens = rest[:count]
        if not queued.first:
            self.memory.settle(queued.width, count)
            self._tell(READ)
        self.tokens.extend(tokens)
        self._generated += count
        self._last_count = count
        if request.constraint is not None:
            request.constraint.commit(tokens)
        if request.policy is not None and not queued.first:
            request.policy.learn(queued.width, num_accepted)
        if tokens and tokens[-1] in request.stop_token_ids:
            self.finish_reason = "stop"
        elif self._generated >= request.max_tokens:
            self.finish_reason = "length"
        return RoundResult(
            tokens=tuple(tokens),
            num_accepted=num_accepted,
            width=queued.width,
            proposal=tuple(rest[queued.width :]),
            first=queued.first,
            synchronous=request.constraint is not None,
            logprobs=read_log_probs(tokens, queued),
        )

    def _not_finite(self, dtype: mx.Dtype) -> LogitsError:
        """Forget what was computed with such numbers; the error, to be raised."""
        self.abandon()
        return LogitsError(self.target.spec.family, dtype)

    def _tell(self, moment: str, *arrays: mx.array) -> None:
        if self._probe is not None:
            self._probe(moment, arrays)


class PlainSession(Session):
    """A session without a drafter: one token per pass."""

    def __init__(self, target: Target):
        super().__init__(target)


class DFlash2Session(Session):
    """A session with a drafter."""

    def __init__(self, target: Target, drafter: Drafter):
        super().__init__(target, drafter)


@dataclass(frozen=True)
class QueuedPass:
    """A pass on its way: `packed` is [count, num_accepted, spoilt, tokens (L), proposal (N)], int32.

    `spoilt` is 1 where a token was chosen by logits that are not finite; `dtype` is that of the target's logits.
    """

    packed: mx.array
    width: int
    first: bool
    dtype: mx.Dtype
    logprobs: tuple[mx.array, mx.array, mx.array] | None


@mx.compile
def cut(
    tokens: mx.array,
    num_accepted: mx.array,
    drafted: mx.array,
    best: mx.array,
    stops: mx.array,
    anchor: mx.array,
    remaining: mx.array,
    done: mx.array,
) -> tuple[mx.array, ...]:
    """End a block at the first stop token or at the limit, and pack what the host will read.

    Shapes:
        tokens: [B, L] int32; drafted: [B, N] int32; best: [B, L], the target's `best_logits`; stops: [S] int32;
        all others [B]
    Returns:
        packed [B, 3 + L + N] int32, keep [B] (0 when already done), then the new anchor, remaining and done
    """
    index = mx.arange(tokens.shape[1], dtype=mx.int32)[None]
    available = num_accepted + 1
    is_stop = (tokens[..., None] == stops).any(axis=-1) & (index < available[:, None])
    first_stop = mx.where(is_stop, index, tokens.shape[1]).min(axis=1)
    keep = mx.minimum(mx.minimum(available, first_stop + 1), remaining)
    keep = mx.where(done, 0, keep).astype(mx.int32)
    remaining = remaining - keep
    newest = mx.take_along_axis(tokens, mx.maximum(keep - 1, 0)[:, None], axis=1)[:, 0]
    anchor = mx.where(keep > 0, newest, anchor)
    done = done | (first_stop < keep) | (remaining <= 0)
    # Rows after the kept ones follow tokens that were refused: what they hold concerns nobody.
    spoilt = (~mx.isfinite(best) & (index < keep[:, None])).any(axis=1)
    counts = mx.stack([keep, num_accepted.astype(mx.int32), spoilt.astype(mx.int32)], axis=1)
    packed = mx.concatenate([counts, tokens, drafted], axis=1)
    return packed, keep, anchor, remaining, done


def best_logits(logits: mx.array) -> mx.array:
    """The largest logit of each row, [B, L] of [B, L, V]: finite exactly where a token can be chosen by the row.

    A maximum is NaN if any number is, and +inf if one overflowed. Single tokens at -inf are a target's way to exclude
    them (padded rows of a table), and leave it finite; a row of nothing else has no token to choose. Asked of what
    the target gave, before masks and biases.
    """
    return mx.max(logits, axis=-1)


def host_row(array: mx.array) -> list[Any]:
    """Row 0 of an evaluated array as Python values; slicing on the device would queue behind the next round."""
    rows: Any = array.tolist()
    return rows[0]


def read_log_probs(tokens: list[int], queued: QueuedPass) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of a pass's emitted tokens, of one sequence; empty where none were asked for."""
    if queued.logprobs is None:
        return ()
    own, ids, values = (host_row(array) for array in queued.logprobs)
    return tuple(
        TokenLogprob(token, own[i], tuple(zip(ids[i], values[i], strict=True))) for i, token in enumerate(tokens)
    )
