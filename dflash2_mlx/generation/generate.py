"""From a prompt to a stream of text, and to the number of its tokens: what callers use.

All MLX work runs on the owner thread, one step of one reply at a time; the caller's thread only waits for finished
pieces.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from ..decode.request import TokenLogprob
from ..decode.session import Session
from ..device.runtime import owner
from ..engine import Engine
from ..prefix_cache import PrefixCache
from ..sampling.constraints import LogitConstraint
from .config import GenerationConfig
from .reply import ReplyJob
from .requests import DFLASH2, make_session, mode_of
from .results import GenerationEvent, GenerationResult
from .text import Prompt, RenderedPrompt, render_prompt


def new_session(engine: Engine, config: GenerationConfig | None = None) -> Session:
    """A conversation: pass it to several replies in turn and only what is new of each prompt is read."""
    mode = mode_of(engine, config or GenerationConfig())
    return owner().call(lambda: make_session(engine, mode))


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
        LogitsError: while it runs, the target's numbers are not finite; a session has forgotten everything then.

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
    reply = ReplyJob(engine, rendered, config, session, constraint, prefix_cache)
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


def _read_events(reply: ReplyJob) -> Generator[GenerationEvent, None, None]:
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


def count_prompt_tokens(engine: Engine, prompt: Prompt | RenderedPrompt, config: GenerationConfig | None = None) -> int:
    """Count the tokens that `stream_generate` would read for this prompt and config.

    Raises:
        ConfigError, PromptError: as `stream_generate` would.
    """
    if isinstance(prompt, RenderedPrompt):
        return len(prompt.ids)
    config = config or GenerationConfig()
    rendered = render_prompt(
        engine.tokenizer, prompt, chat_template=config.chat_template, template_kwargs=config.chat_template_kwargs
    )
    return len(rendered.ids)
