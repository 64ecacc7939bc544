"""The loop that every session runs: prefill, then rounds that never wait on the host.

Owns: everything that changes while text is generated (target state, anchor, counters), the order of work in a
round, and rollback. Plain decoding and DFlash 2 are the same loop; `session.py` says what drafting adds to it.
Knows nothing of text, tokenizers or stop strings.

Invariants: `tokens` are the committed tokens as far as the host knows, and the state holds rows for exactly
the first `position` of them. Round n+1 is built and queued before round n's tokens are read, so accept
counts, lengths, anchor, stop tokens and the token limit are all device values.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..drafters.dflash2.context import DrafterContext
from ..drafters.dflash2.model import DraftModel
from ..errors import LogitsError
from ..sampling.acceptance import Acceptance, Proposal
from ..sampling.constraints import LogitConstraint, constraint_rows
from ..sampling.sampler import TokenChooser, gather_log_probs
from ..targets.base import Target
from .memory import Extent, SessionSnapshot, extent_of
from .request import PrefillProgress, Request, RoundResult, TokenLogprob


class Session:
    """Decodes one token per pass: plain decoding, and the base of drafting sessions."""

    def __init__(self, target: Target):
        self.target = target
        self.state = target.new_state(1)
        self.tokens: list[int] = []
        self.position = 0  # rows the state holds, as the host knows
        self.finish_reason: str | None = None
        self.cached_tokens = 0
        self._pending: deque[QueuedPass] = deque()
        self._request: Request | None = None
        self._generated = 0
        self._last_count = 0  # tokens of the result read last
        self._shared: mx.array | None = None  # noise that the next round's draft was drawn with, where it is shared

    @property
    def busy(self) -> bool:
        """Whether a reply is being made."""
        return self._request is not None

    # The life of a request.

    def begin(self, request: Request) -> None:
        """Start a reply. Rows of an earlier turn that the new prompt shares are kept, not read again."""
        self.finish()
        self.cached_tokens = self._reuse(request.prompt)
        self._request = request
        self.tokens = list(request.prompt)
        self.finish_reason = None
        self._generated = 0
        self._chooser = TokenChooser(request.sampling, self.target.spec.vocab_size, request.seed, request.prompt)
        self._stops = mx.array(sorted(request.stop_token_ids) or [-1], dtype=mx.int32)
        self._anchor = mx.zeros((1,), dtype=mx.int32)
        self._remaining = mx.full((1,), request.max_tokens, dtype=mx.int32)
        self._done = mx.zeros((1,), dtype=mx.bool_)
        self._prepare(request)

    def step(self) -> PrefillProgress | RoundResult | None:
        """Do one piece of work: a prefill chunk, or queue a round and read the one before. None when finished.

        Raises:
            LogitsError: the target's numbers are not finite; the session has forgotten everything.
        """
        request = self._request
        if request is None or self.finish_reason is not None:
            return None
        if self.position < len(request.prompt) and not self._pending:
            self._prefill_chunk(request)
            return PrefillProgress(self.position, len(request.prompt), self.cached_tokens)
        if request.constraint is not None:
            if not self._pending:
                self._queue_constrained(request, request.constraint)
            return self._read(request)
        if self._pending and self._pending[0].first:
            return self._read(request)  # at once: nothing heavy was queued with it, and its reader waits
        if self._may_queue(request):
            self._queue_round(request, self._draft(request))
            if len(self._pending) == 1:
                return self.step()
        return self._read(request)

    def finish(self, keep: int | None = None, reason: str | None = None) -> None:
        """End the request and bring the state to what was committed.

        Args:
            keep: tokens of the result read last that count; None keeps all of them.
            reason: why, where the session itself did not find out.
        """
        if self._request is None:
            return
        in_flight = sum(not queued.first for queued in self._pending)
        self._pending.clear()
        dropped = 0 if keep is None else self._last_count - keep
        if keep is not None and dropped:
            self.tokens = self.tokens[:-dropped]
            self.position = len(self.tokens) - 1
            self.state.rewind(in_flight + 1, keep, self.position)
        elif in_flight:
            self.state.rewind(in_flight, 0, self.position)
        else:
            self.state.forget_future(self.position)
        if self.position < len(self._request.prompt) - 1:  # cancelled while the prompt was being read
            self.tokens = self.tokens[: self.position]
        self._truncate_context(self.position)
        self.finish_reason = reason or self.finish_reason or "cancelled"
        self._request = None

    def abandon(self) -> None:
        """After an error inside a step: nothing of the state can be trusted, so forget it."""
        self._pending.clear()
        self._request = None
        self.finish_reason = "error"
        self.reset()

    def snapshot(self, *, packed: bool = False) -> SessionSnapshot:
        """What the session knows; costs one copy of the buffers, at the next write or, packed, at once.

        Args:
            packed: copy now, without the buffers' spare room and the rows nobody can see any more.
        Raises:
            RuntimeError: while a reply is being made; packed, between two prompt chunks, is allowed.
        """
        if self._pending or (self.busy and (not packed or self._generated)):
            raise RuntimeError("snapshot: got a running reply, expected a finished one")
        tokens = self.tokens[: self.position] if self.busy else list(self.tokens)
        if not packed:
            return SessionSnapshot(tokens, self.position, self.state.copy(), self._copied_context())
        taken = SessionSnapshot(tokens, self.position, self.state.packed(), self._packed_context())
        mx.eval(taken.arrays())
        return taken

    def restore(self, snapshot: SessionSnapshot) -> None:
        """Go back to a snapshot of this kind of session; the snapshot stays usable."""
        self.finish()
        self.tokens, self.position = list(snapshot.tokens), snapshot.position
        self.state = snapshot.state.copy()
        self._restore_context(snapshot.context)

    # What it remembers.

    def extent(self) -> Extent:
        """What is remembered, as a prefix cache compares it."""
        return extent_of(self.tokens, self.position, self.state, None)

    def first_visible(self, prompt_length: int) -> int | None:
        """First context row that a block after a prompt of this length sees; None when nothing is drafted."""
        return None

    @property
    def needs_boundary(self) -> bool:
        """Whether something of the memory cannot be cut back to any earlier position."""
        return bool(self.state.recurrent) or self.state.sliding.num_layers > 0

    def keeps(self, prompt: list[int]) -> int:
        """Tokens of `prompt` that would not be read again."""
        return self.extent().kept(prompt, self.first_visible(len(prompt)))

    def _reuse(self, prompt: list[int]) -> int:
        """Bring the state to the longest prefix of `prompt` it can hold; returns its length."""
        common = self.keeps(prompt)
        if common == 0:
            self.reset()
        elif common < self.position:
            self.state.truncate(common)
            self._truncate_context(common)
        self.position = common
        return common

    def reset(self) -> None:
        """Forget everything."""
        self.state = self.target.new_state(1)
        self.tokens, self.position = [], 0

    # Prefill.

    def _prefill_chunk(self, request: Request) -> None:
        start = self.position
        end = min(start + request.prefill_chunk, len(request.prompt))
        end = min([end, *(boundary for boundary in request.boundaries if boundary > start)])
        ids = request.prompt[start:end]
        out = self.target.forward(
            mx.array([ids], dtype=mx.int32), self.state, taps=self._prefill_taps(end), last_only=True
        )
        self.target.commit(self.state, len(ids))
        self.state.forget_future(end)  # prompt rows are never taken back one by one
        self._keep_context(out.taps, start, end)
        self.position = end
        # Nothing is in flight here: waiting bounds the memory of a long prompt to one chunk.
        mx.eval(self.state.arrays(), self._context_arrays())
        if end < len(request.prompt):
            # A snapshot is taken here, long before a token tells: nothing may be kept of numbers that are not finite.
            if end in request.boundaries and not mx.isfinite(best_logits(out.logits)).all().item():
                raise self._not_finite(out.logits.dtype)
            return
        self.state.trim()
        mask = None
        if request.constraint is not None:
            mask = constraint_rows(request.constraint, [], self.target.spec.vocab_size)
        fed = mx.array([end - 1], dtype=mx.int32)
        chosen, processed = self._chooser.choose(
            out.logits, fed, None, shared=self._chooser.shared_noise(fed, 1), mask=mask
        )
        self._queue(request, out.logits, chosen, None, processed, first=True)

    # Rounds.

    def _may_queue(self, request: Request) -> bool:
        """Each pass on its way commits at least one token: no use queueing beyond the limit."""
        return self._generated + len(self._pending) < request.max_tokens

    def _queue_round(self, request: Request, proposal: Proposal | None, mask: mx.array | None = None) -> None:
        """Build one round on the device and hand it over; nothing here waits."""
        start = self.state.length
        ids = self._anchor[:, None]
        if proposal is not None:
            ids = mx.concatenate([ids, proposal.tokens], axis=1)
        out = self.target.forward(ids, self.state, taps=self._taps())
        shared = self._shared
        if shared is None and proposal is None:
            shared = self._chooser.shared_noise(start, 1)
        chosen, processed = self._chooser.choose(out.logits, start, proposal, shared=shared, mask=mask)
        count = self._queue(request, out.logits, chosen, proposal, processed)
        # Without a proposal only committed tokens are fed, so the row always stays (finish() goes back if need be).
        keep = 1 if proposal is None else count
        self.target.commit(self.state, keep)
        self._append_context(out.taps, keep)

    def _queue(
        self,
        request: Request,
        logits: mx.array,
        chosen: Acceptance,
        proposal: Proposal | None,
        processed: mx.array,
        *,
        first: bool = False,
    ) -> mx.array:
        """Cut at stop token and limit, move the anchor, and send what the host will read.

        Shapes:
            logits, processed: [B, L, V], as the target gave them and as the tokens were chosen by
        """
        tokens = chosen.tokens
        drafted = tokens[:, :0] if proposal is None else proposal.tokens
        packed, keep, self._anchor, self._remaining, self._done = cut(
            tokens,
            chosen.num_accepted,
            drafted,
            best_logits(logits),
            self._stops,
            self._anchor,
            self._remaining,
            self._done,
        )
        self._chooser.record(tokens, keep)
        logprobs = None
        if request.logprobs is not None:
            logprobs = gather_log_probs(processed, tokens, request.logprobs)
            mx.async_eval(packed, *logprobs)
        else:
            # A call of its own: reading an array waits for the whole call it was queued in.
            mx.async_eval(packed)
        self._pending.append(QueuedPass(packed, tokens.shape[1], first, logits.dtype, logprobs))
        return keep

    def _queue_constrained(self, request: Request, constraint: LogitConstraint) -> None:
        """The one synchronous path: the host must see the proposal to mask the rows after it."""
        proposal = self._draft(request)
        proposed = [] if proposal is None else host_row(proposal.tokens)
        self._queue_round(request, proposal, constraint_rows(constraint, proposed, self.target.spec.vocab_size))

    def _read(self, request: Request) -> RoundResult:
        """Wait for the oldest queued pass; the only place a round's results reach the host."""
        queued = self._pending.popleft()
        count, num_accepted, spoilt, *rest = host_row(queued.packed)
        if spoilt:
            raise self._not_finite(queued.dtype)
        tokens = rest[:count]
        start = self.position
        if not queued.first:
            self.position += count
            self._settle(queued.width, count, start)
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

    # What a drafting session adds.

    def _prepare(self, request: Request) -> None:
        """Called when a request begins, after the state was brought to the shared prefix."""

    def _taps(self) -> tuple[int, ...]:
        """Target layers whose outputs a round's pass hands out."""
        return ()

    def _prefill_taps(self, end: int) -> tuple[int, ...]:
        """The same of the prompt chunk that ends before position `end`."""
        return ()

    def _draft(self, request: Request) -> Proposal | None:
        """What the next round verifies; None for a round of plain decoding."""
        return None

    def _keep_context(self, taps: mx.array | None, start: int, end: int) -> None:
        """Prompt rows start..end-1 were read."""

    def _append_context(self, taps: mx.array | None, keep: int | mx.array) -> None:
        """A round's rows were verified."""

    def _settle(self, rows: int, kept: int, start: int) -> None:
        self.state.settle(rows, kept, start)

    def _truncate_context(self, position: int) -> None:
        """Rows past `position` are gone."""

    def _context_arrays(self) -> list[mx.array]:
        return []

    def _copied_context(self) -> DrafterContext | None:
        return None

    def _packed_context(self) -> DrafterContext | None:
        return None

    def _restore_context(self, context: DrafterContext | None) -> None:
        """Take over the context of a snapshot."""


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


class PlainSession(Session):
    """One token per pass, no drafter; pipelined exactly like a drafting session."""


class DFlash2Session(Session):
    """Drafts a block, verifies it in one pass, keeps what the target agrees to."""

    def __init__(self, target: Target, drafter: DraftModel):
        super().__init__(target)
        self.drafter = drafter
        self.context = drafter.new_context(1)

    def reset(self) -> None:
        super().reset()
        self.context = self.drafter.new_context(1)

    def extent(self) -> Extent:
        return extent_of(self.tokens, self.position, self.state, self.context)

    def first_visible(self, prompt_length: int) -> int:
        return self.drafter.config.first_visible(prompt_length)

    @property
    def needs_boundary(self) -> bool:
        return super().needs_boundary or self.drafter.config.context_window is not None

    def _prepare(self, request: Request) -> None:
        # What is put aside at a boundary must serve any prompt that goes on from there.
        ahead = [boundary + 1 for boundary in request.boundaries if boundary > self.position]
        self._first_row = self.first_visible(min([len(request.prompt), *ahead]))
        if self._first_row < self.position and self.context.buffers.first_whole > self._first_row:
            self._first_row = self.first_visible(len(request.prompt))  # rows kept for a longer prompt: enough for this
        if self._first_row and self._first_row >= self.position:  # rows up to there will never be seen: leave a gap
            self.context.skip_to(self._first_row)

    def _taps(self) -> tuple[int, ...]:
        return self.drafter.config.target_layer_ids

    def _prefill_taps(self, end: int) -> tuple[int, ...]:
        needed = end > self._first_row or self.position < self.drafter.config.sink
        return self._taps() if needed else ()

    def _keep_context(self, taps: mx.array | None, start: int, end: int) -> None:
        if taps is None:
            return
        sink_end = min(end, self.drafter.config.sink)
        if start < sink_end < self._first_row:  # the sink's rows; between them and the window is a gap
            self._project(taps[:, : sink_end - start], start)
            self.context.truncate(self._first_row)
        if end > self._first_row:
            first = max(start, self._first_row)
            self._project(taps[:, first - start :], first)
        if self._request is not None and end == len(self._request.prompt):
            self.context.trim()

    def _project(self, taps: mx.array, start: int) -> None:
        """Add the context rows of prompt positions start.. ."""
        rows = taps.shape[1]
        self.context.truncate(start)
        self.drafter.append_context(taps, self.context, rows)
        self.context.settle(rows, rows, start + rows)

    def _draft(self, request: Request) -> Proposal | None:
        width = request.width if request.policy is None else request.policy.width()
        assert 1 <= width <= request.width, "a width policy left its range"
        self._shared = None
        if width == 1:
            return None
        start, sampling = self.state.length, request.sampling
        if not sampling.greedy and sampling.coupled:
            self._shared = self._chooser.shared_noise(start, width)
        return self.drafter.propose(
            self._anchor,
            self.context,
            width,
            self.target,
            temperature=0.0 if sampling.greedy else sampling.temperature,
            noise=self._chooser.draft_noise(start, width - 1, self._shared),
        )

    def _append_context(self, taps: mx.array | None, keep: int | mx.array) -> None:
        assert taps is not None
        self.drafter.append_context(taps, self.context, keep)

    def _settle(self, rows: int, kept: int, start: int) -> None:
        super()._settle(rows, kept, start)
        self.context.settle(rows, kept, start)

    def _truncate_context(self, position: int) -> None:
        self.context.truncate(position)

    def _context_arrays(self) -> list[mx.array]:
        return self.context.arrays()

    def _copied_context(self) -> DrafterContext:
        return self.context.copy()

    def _packed_context(self) -> DrafterContext:
        return self.context.packed()

    def _restore_context(self, context: DrafterContext | None) -> None:
        if context is None:
            raise TypeError("restore: got a snapshot without drafter context, expected one of a DFlash2Session")
        self.context = context.copy()
