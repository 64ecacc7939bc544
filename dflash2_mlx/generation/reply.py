"""One reply in the making: a job of the owner thread, read by another thread.

Owns: the order of a reply's steps, its events, and how long each part took. Knows nothing of how a round works.
"""

from __future__ import annotations

import queue
import time
from dataclasses import replace

import mlx.core as mx

from ..decode.request import PrefillProgress, RoundResult
from ..decode.session import Session
from ..decode.widths import Adaptive
from ..engine import Engine
from ..errors import ConfigError, LogitsError
from ..kernels.dispatch import dispatcher
from ..prefix_cache import PrefixCache, Prepared
from ..sampling.constraints import LogitConstraint
from .config import GenerationConfig
from .requests import DFLASH2, check_session, make_request, make_session, mode_of
from .results import GenerationEvent, RoundInfo
from .text import RenderedPrompt, TextStream

_AHEAD = 64  # events a reply may be ahead of its reader


class ReplyJob:
    """A reply that nobody has asked an event of yet.

    Args:
        session: goes on with what it holds; None makes one.
        prefix_cache: see `stream_generate`.
    Raises:
        ConfigError, PromptError: what the engine or the session cannot do.
    """

    def __init__(
        self,
        engine: Engine,
        rendered: RenderedPrompt,
        config: GenerationConfig,
        session: Session | None = None,
        constraint: LogitConstraint | None = None,
        prefix_cache: PrefixCache | None = None,
    ):
        if session is not None:
            check_session(engine, session, mode_of(engine, config))
        self.request, self.stats = make_request(engine, rendered, config, constraint)
        self.engine = engine
        self.session = session
        self.prefix_cache = prefix_cache
        self._prepared: Prepared | None = None
        boundaries = rendered.boundaries or (len(rendered.ids) - 1,)
        self._boundaries = tuple(boundary for boundary in boundaries if 0 < boundary < len(rendered.ids))
        self.text = TextStream(engine.tokenizer, config.stop)
        self.events: queue.Queue[GenerationEvent | BaseException] = queue.Queue()
        self._began = 0.0
        self._first_token = 0.0
        self._closed = False
        self._stalled_since = 0.0
        self._stalled_s = 0.0

    def prepare(self) -> None:
        """Before the reply runs, in the caller's thread: what has to wait for the disk."""
        if self.prefix_cache is not None:
            ids, first_visible = self.request.prompt, None
            if self.stats.mode == DFLASH2 and self.engine.drafter is not None:
                first_visible = self.engine.drafter.config.first_visible(len(ids))
            self._prepared = self.prefix_cache.prepare(self.engine.fingerprint, ids, first_visible)

    # On the owner thread.

    def ready(self) -> bool:
        """Whether a step may be made: not while the reader is too far behind. Such waiting is no decoding time."""
        if self.events.qsize() >= _AHEAD and not self._closed:
            self._stalled_since = self._stalled_since or time.perf_counter()
            return False
        if self._stalled_since:
            self._stalled_s += time.perf_counter() - self._stalled_since
            self._stalled_since = 0.0
        return True

    def step(self) -> bool:
        """Do one step of the session and pass on what came of it."""
        if self._closed:
            return False
        try:
            return self._advance()
        except BaseException as error:  # noqa: BLE001 - the reader gets it; the owner thread must live on
            self._closed = True
            if self.session is not None:
                self.session.abandon()
            self.events.put(error)
            return False

    def cancel(self) -> None:
        """Stop now; the session keeps what was committed, up to `_AHEAD` events more than the reader took."""
        if not self._closed:
            self._closed = True
            # Before its first step a reply has no claim on the session: another one may be using it.
            if self._began and self.session is not None:
                self.session.finish(reason="cancelled")

    def _advance(self) -> bool:
        if self.session is None:
            self.session = make_session(self.engine, self.stats.mode)
        if not self._began:
            if self.session.busy:
                self.session = None  # it belongs to the other reply: leave it alone
                raise ConfigError("session: got one with a running reply, expected a finished one")
            self._begin(self.session)
        try:
            result = self.session.step()
        except LogitsError as error:  # a session knows its target, but not what it is called here
            raise LogitsError(self.engine.target_name, error.precision) from None
        assert result is not None
        if isinstance(result, PrefillProgress):
            self.events.put(
                GenerationEvent("", (), self.stats.copy(), prefilled=result.done, prompt_tokens=result.total)
            )
            if result.done in self.request.boundaries:
                self._keep_prefix(self.session)
            return True
        self._pass_on(self.session, result)
        return not self._closed

    def _begin(self, session: Session) -> None:
        if self.stats.verify_mode == "adaptive":
            self.request = replace(self.request, policy=self._adaptive_widths())
        self._began = time.perf_counter()
        mx.reset_peak_memory()
        if self.prefix_cache is not None:
            self.prefix_cache.adopt(self.engine.fingerprint, session, self.request.prompt, self._prepared)
            self._prepared = None
            self._tell_of_cache()
            if session.memory.needs_boundary:
                self.request = replace(self.request, boundaries=self._boundaries)
        session.begin(self.request)
        self.stats.cached_tokens = session.cached_tokens

    def _adaptive_widths(self) -> Adaptive:
        engine = self.engine
        assert engine.drafter is not None
        began, known = time.perf_counter(), engine.costs.known
        costs = engine.costs.costs(engine.target, engine.drafter)
        if not known:
            spent = time.perf_counter() - began
            self.stats.notices.append(
                f"verify_mode adaptive: the costs of passes were measured first, in {spent:.1f} s"
            )
            self.stats.notices += [engine.costs.problem] if engine.costs.problem else []
        return Adaptive(costs, self.request.width, depth=len(self.request.prompt))

    def _tell_of_cache(self) -> None:
        """Pass on what the cache skipped or could not do."""
        if self.prefix_cache is not None:
            self.stats.notices.extend(self.prefix_cache.take_notes())

    def _tell_of_kernels(self) -> None:
        """Pass on which kernels were switched off while the reply was made."""
        if self.stats.mode == DFLASH2:
            known = self.stats.notices
            known.extend([note for note in dispatcher().notes() if note not in known])

    def _keep_prefix(self, session: Session) -> None:
        """Put the session's memory aside."""
        if self.prefix_cache is not None:
            self.prefix_cache.store(self.engine.fingerprint, session)

    def _pass_on(self, session: Session, result: RoundResult) -> None:
        tokens, counted = list(result.tokens), result
        reason = session.finish_reason
        if reason == "stop":
            tokens = tokens[:-1]
        pieces = []
        for number, token in enumerate(tokens, start=1):
            pieces.append(self.text.push(token))
            if self.text.stopped:
                reason, tokens = "stop", tokens[:number]
                counted = replace(result, tokens=tuple(tokens))
                session.finish(keep=number, reason=reason)
                break
        if reason is not None:
            pieces.append(self.text.finish())
            if self.text.stopped:
                reason = "stop"  # also where only the last text completed the stop string, at the length limit
            session.finish(reason=reason)
            self._closed = True
            self._tell_of_cache()
            self._tell_of_kernels()
        self._count(counted)
        info = None
        if not result.first:
            info = RoundInfo(result.num_accepted, result.width, len(counted.tokens), result.proposal)
        self.events.put(
            GenerationEvent(
                "".join(pieces),
                tuple(tokens),
                self.stats.copy(),
                reason,
                info,
                result.logprobs[: len(tokens)],
                prefilled=self.stats.prompt_tokens,
                prompt_tokens=self.stats.prompt_tokens,
            )
        )
        if reason is not None:
            self._keep_prefix(session)

    def _count(self, result: RoundResult) -> None:
        now = time.perf_counter()
        if not self._first_token:
            self._first_token = now
            self.stats.prefill_s = now - self._began
        self.stats.decode_s = now - self._first_token - self._stalled_s
        self.stats.peak_memory_bytes = mx.get_peak_memory()
        self.stats.add(result)
