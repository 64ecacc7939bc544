"""From what a caller asks for to a request that a session can run.

Owns: what is decided before a reply begins (mode, width, limits, seed), what is refused then, and the notices of it.
Runs nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from ..decode.request import Request
from ..decode.session import DFlash2Session, PlainSession, Session
from ..decode.stats import GenerationStats
from ..engine import Engine
from ..errors import ConfigError, PromptError, SettingError
from ..kernels.dispatch import dispatcher
from ..sampling.constraints import LogitConstraint
from .config import GenerationConfig
from .text import RenderedPrompt

PLAIN, DFLASH2 = "plain", "dflash2"
NO_DRAFTER = "no drafter given"
OFF = "verify_mode is off"


def make_request(
    engine: Engine, rendered: RenderedPrompt, config: GenerationConfig, constraint: LogitConstraint | None
) -> tuple[Request, GenerationStats]:
    """What a session is to do, and the statistics of a reply of which nothing was read yet.

    Raises:
        SettingError, PromptError: what this engine cannot do, each by name.
    """
    mode, sampling = mode_of(engine, config), config.sampling
    _check_ids(engine, rendered.ids, config)
    max_tokens = _room(engine, rendered.ids, config.max_tokens)
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
    stats = GenerationStats(
        mode=mode,
        block_size=_width(engine, config) if mode == DFLASH2 else None,
        fallback_reason=_fallback_reason(engine, config, mode),
        verify_mode=config.verify_mode if mode == DFLASH2 else None,
        notices=[*engine.load_notices, *rendered.notices, *(dispatcher().notes() if mode == DFLASH2 else ())],
        prompt_tokens=len(rendered.ids),
        seed=None if sampling.greedy else seed,
        lossless_mode=None if sampling.greedy or mode == PLAIN else "coupled" if sampling.coupled else "rejection",
    )
    if max_tokens < config.max_tokens:
        stats.notices.append(
            f"max_tokens: {config.max_tokens} was cut to {max_tokens}, what the model's context leaves"
        )
    if constraint is not None and mode == DFLASH2:
        stats.notices.append("a constraint is set: rounds wait for the host")
    request = Request(
        prompt=rendered.ids,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=seed,
        stop_token_ids=engine.stop_token_ids if config.stop_token_ids is None else frozenset(config.stop_token_ids),
        width=stats.block_size or 1,
        logprobs=config.logprobs,
        prefill_chunk=config.prefill_chunk,
        constraint=constraint,
    )
    return request, stats


def mode_of(engine: Engine, config: GenerationConfig) -> str:
    """Whether a reply drafts.

    Raises:
        SettingError: drafting was asked for, and there is no drafter.
    """
    if config.mode == DFLASH2 and engine.drafter is None:
        raise SettingError("mode: got 'dflash2', expected 'plain' or 'auto': the engine has no drafter")
    if config.mode == PLAIN or engine.drafter is None or config.verify_mode == "off":
        return PLAIN
    return DFLASH2


def make_session(engine: Engine, mode: str) -> Session:
    """A session without memory yet; to be made on the owner thread."""
    if mode == DFLASH2 and engine.drafter is not None:
        return DFlash2Session(engine.target, engine.drafter)
    return PlainSession(engine.target)


def check_session(engine: Engine, session: Session, mode: str) -> None:
    """Refuse a session that was made for another mode or engine.

    Raises:
        ConfigError: naming which.
    """
    if (session.drafter is not None) != (mode == DFLASH2):
        raise ConfigError(f"session: got a {type(session).__name__}, expected one made for mode {mode!r}")
    same = session.target is engine.target and (session.drafter is None or session.drafter is engine.drafter)
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


def _check_ids(engine: Engine, prompt: Sequence[int], config: GenerationConfig) -> None:
    """Token ids that the target does not have."""
    rows = engine.target.spec.embedding_rows
    for token in prompt:
        if not 0 <= token < rows:
            raise PromptError(f"prompt: got token id {token}, expected ids in 0..{rows - 1}")
    vocab = engine.target.spec.vocab_size
    for name, tokens in (("logit_bias", config.sampling.logit_bias), ("stop_token_ids", config.stop_token_ids)):
        for token in tokens or ():
            if token >= vocab:
                raise SettingError(f"{name}: got token id {token}, expected 0..{vocab - 1}")


def _room(engine: Engine, prompt: Sequence[int], max_tokens: int) -> int:
    """How many of these tokens the model's context leaves."""
    limit = engine.context_length
    if limit is not None and len(prompt) >= limit:
        raise PromptError(f"prompt: got {len(prompt)} tokens, expected fewer than the model's context of {limit}")
    room = max_tokens if limit is None else min(max_tokens, limit - len(prompt))
    if room > GenerationConfig.MOST_TOKENS:
        raise SettingError(f"max_tokens: got {max_tokens}, expected an integer in 1..{GenerationConfig.MOST_TOKENS}")
    return room
