"""From a prompt to a stream of text: prefill, rounds, stop rules, statistics.

Owns: the reply as users see it. All MLX work runs on the owner thread, one step of one reply at a time; the
caller's thread only waits for finished pieces. Knows nothing of how a round works.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Generator, Iterator
from dataclasses import replace

import mlx.core as mx

from .config import GenerationConfig
from .constraints import LogitConstraint
from .costs import MODEL
from .errors import ConfigError, PromptError, SettingError
from .kernels._dispatch import dispatcher
from .load import Engine
from .prefix_cache import PrefixCache, Prepared
from .results import GenerationEvent, GenerationResult, RoundInfo
from .rounds import Request
from .runtime import owner
from .session import DFlash2Session, PlainSession, Session
from .stats import GenerationStats, PrefillProgress, RoundResult, TokenLogprob
from .text import Prompt, RenderedPrompt, TextStream, render_prompt
from .widths import Adaptive

_AHEAD = 64  # events a reply may be ahead of its reader

PLAIN, DFLASH2 = "plain", "dflash2"
NO_DRAFTER = "no drafter given"
OFF = "verify_mode is off"
ADAPTIVE_BY_MODEL = "verify_mode adaptive: the costs of passes are computed for this chip, not measured"


def new_session(engine: Engine, config: GenerationConfig | None = None) -> Session:
    """A conversation: pass it to several replies in turn and only what is new of each prompt is read."""
    mode = _mode(engine, config or GenerationConfig())
    return owner().call(lambda: _make_session(engine, mode))


def stream_generate(
    engine: Engine,
    prompt: Prompt | RenderedPrompt,
    config: GenerationConfig | None = None,
    *,
    session: Session | None = None,
    constraint: LogitConstraint | None = None,
    prefix_cache: PrefixCache | None = None,
) -> Generator[GenerationEvent, None, None]:
    """Reply to a prompt, piece by piece.

    Args:
        prompt: text, chat messages or token ids, see `render_prompt`; or what that made of them.
        session: from `new_session`, to go on with an earlier conversation.
        constraint: restricts the next token; its rounds wait for the host.
        prefix_cache: what earlier replies read and need not be read again; this reply adds to it.
    Raises:
        ConfigError, PromptError: before anything runs.

    Closing the iterator cancels the reply; a session stays usable.
    """
    config = config or GenerationConfig()
    if isinstance(prompt, RenderedPrompt):
        rendered = prompt
    else:
        rendered = render_prompt(
            engine.tokenizer,
            prompt,
            chat_template=config.chat_template,
            template_kwargs=config.chat_template_kwargs,
            find_boundaries=prefix_cache is not None,
        )
    reply = _Reply(engine, rendered, config, session, constraint, prefix_cache)
    return _read_events(reply)


def generate(
    engine: Engine,
    prompt: Prompt,
    config: GenerationConfig | None = None,
    *,
    session: Session | None = None,
    constraint: LogitConstraint | None = None,
    prefix_cache: PrefixCache | None = None,
) -> GenerationResult:
    """Reply to a prompt and return it whole; arguments as in `stream_generate`."""
    events = stream_generate(engine, prompt, config, session=session, constraint=constraint, prefix_cache=prefix_cache)
    return collect(engine, events)


def collect(engine: Engine, events: Iterator[GenerationEvent]) -> GenerationResult:
    """Join the events of one reply.

    Raises:
        ValueError: the iterator was read or closed before its end.
    """
    text: list[str] = []
    ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    last: GenerationEvent | None = None
    for last in events:
        text.append(last.text)
        ids.extend(last.token_ids)
        logprobs.extend(last.logprobs)
    if last is None or last.finish_reason is None:
        raise ValueError("events: got no last event of a reply, expected an iterator that nobody closed or read")
    drafter = engine.drafter_name if last.stats.mode == DFLASH2 else None
    return GenerationResult("".join(text), ids, last.finish_reason, last.stats, engine.target_name, drafter, logprobs)


def _mode(engine: Engine, config: GenerationConfig) -> str:
    if config.mode == DFLASH2 and engine.drafter is None:
        raise SettingError("mode: got 'dflash2', expected 'plain' or 'auto': the engine has no drafter")
    if config.mode == PLAIN or engine.drafter is None or config.verify_mode == "off":
        return PLAIN
    return DFLASH2


def _make_session(engine: Engine, mode: str) -> Session:
    if mode == DFLASH2 and engine.drafter is not None:
        return DFlash2Session(engine.target, engine.drafter)
    return PlainSession(engine.target)


def _check_session(engine: Engine, session: Session, mode: str) -> None:
    if isinstance(session, DFlash2Session) != (mode == DFLASH2):
        raise ConfigError(f"session: got a {type(session).__name__}, expected one made for mode {mode!r}")
    same = session.target is engine.target
    if isinstance(session, DFlash2Session):
        same = same and session.drafter is engine.drafter
    if not same:
        raise ConfigError("session: got one of another engine, expected one made by new_session(engine)")


def _width(engine: Engine, config: GenerationConfig) -> int:
    assert engine.block_size is not None
    width = config.block_size or engine.block_size
    if width > engine.block_size:
        raise SettingError(f"block_size: got {width}, expected an integer in 2..{engine.block_size}")
    return width


def _fallback_reason(engine: Engine, config: GenerationConfig, mode: str) -> str | None:
    """Why nothing is drafted although the caller left the choice open."""
    if config.mode != "auto" or mode == DFLASH2:
        return None
    return NO_DRAFTER if engine.drafter is None else OFF


class _Reply:
    """One reply in the making: a job of the owner thread, read by another thread."""

    def __init__(
        self,
        engine: Engine,
        rendered: RenderedPrompt,
        config: GenerationConfig,
        session: Session | None,
        constraint: LogitConstraint | None,
        prefix_cache: PrefixCache | None,
    ):
        mode = _mode(engine, config)
        if session is not None:
            _check_session(engine, session, mode)
        self._check_limits(engine, rendered.ids, config)
        sampling = config.sampling
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.stats = GenerationStats(
            mode=mode,
            block_size=_width(engine, config) if mode == DFLASH2 else None,
            fallback_reason=_fallback_reason(engine, config, mode),
            verify_mode=config.verify_mode if mode == DFLASH2 else None,
            notices=[*rendered.notices, *(dispatcher().notes() if mode == DFLASH2 else ())],
            prompt_tokens=len(rendered.ids),
            seed=None if sampling.greedy else seed,
            lossless_mode=None
            if sampling.greedy or mode == PLAIN
            else ("coupled" if sampling.coupled else "rejection"),
        )
        if self._max_tokens < config.max_tokens:
            self.stats.notices.append(
                f"max_tokens: {config.max_tokens} was cut to {self._max_tokens}, what the model's context leaves"
            )
        if constraint is not None and mode == DFLASH2:
            self.stats.notices.append("a constraint is set: rounds wait for the host")
        stops = engine.stop_token_ids if config.stop_token_ids is None else frozenset(config.stop_token_ids)
        self.request = Request(
            prompt=rendered.ids,
            max_tokens=self._max_tokens,
            sampling=sampling,
            seed=seed,
            stop_token_ids=stops,
            width=self.stats.block_size or 1,
            logprobs=config.logprobs,
            prefill_chunk=config.prefill_chunk,
            constraint=constraint,
        )
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

    def _check_limits(self, engine: Engine, ids: list[int], config: GenerationConfig) -> None:
        self._max_tokens = config.max_tokens
        rows = engine.target.spec.embedding_rows
        for token in ids:
            if not 0 <= token < rows:
                raise PromptError(f"prompt: got token id {token}, expected ids in 0..{rows - 1}")
        vocab = engine.target.spec.vocab_size
        for name, tokens in (("logit_bias", config.sampling.logit_bias), ("stop_token_ids", config.stop_token_ids)):
            for token in tokens or ():
                if token >= vocab:
                    raise SettingError(f"{name}: got token id {token}, expected 0..{vocab - 1}")
        limit = engine.context_length
        if limit is None:
            return
        if len(ids) >= limit:
            raise PromptError(f"prompt: got {len(ids)} tokens, expected fewer than the model's context of {limit}")
        self._max_tokens = min(config.max_tokens, limit - len(ids))

    def prepare(self) -> None:
        """Before the reply runs, in the caller's thread: what has to wait for the disk."""
        if self.prefix_cache is not None:
            ids, first_visible = self.request.prompt, None
            if self.stats.mode == DFLASH2 and self.engine.drafter is not None:
                first_visible = self.engine.drafter.config.first_visible(len(ids))
            self._prepared = self.prefix_cache.prepare(self.engine.fingerprint, ids, first_visible)

    # On the owner thread.

    def ready(self) -> bool:
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
            self.session = _make_session(self.engine, self.stats.mode)
        if not self._began:
            if self.session.busy:
                self.session = None  # it belongs to the other reply: leave it alone
                raise ConfigError("session: got one with a running reply, expected a finished one")
            self._begin(self.session)
        result = self.session.step()
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
            if session.needs_boundary:
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
        elif engine.costs.source == MODEL:
            self.stats.notices.append(ADAPTIVE_BY_MODEL)
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
            session.finish()
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


def _read_events(reply: _Reply) -> Generator[GenerationEvent, None, None]:
    """Hand out events in the caller's thread; runs the reply only once the first one is asked for."""
    reply.prepare()
    owner().submit(reply)
    try:
        while True:
            event = reply.events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if event.finish_reason is not None:
                return
    finally:
        if not owner().ended:
            owner().call(reply.cancel)
