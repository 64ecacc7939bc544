"""Replies that are measured: decoded by the engine as any other, then walked through once more, block by block.

Owns: the tokens and rounds of a reply, and the drafter's state before any position of it. The second walk feeds the
target the finished reply, so that a block is drafted from the very context that decoding would have there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..decode.stats import GenerationStats
from ..drafters.dflash2.context import DrafterContext
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..errors import ConfigError
from ..generation.config import GenerationConfig
from ..generation.generate import new_session, stream_generate
from ..generation.results import RoundInfo
from ..generation.text import Prompt
from ..targets.base import Target

_CHUNK = 512  # rows of one pass of the target


def drafter_of(engine: Engine) -> DraftModel:
    """The drafter that is to be measured.

    Raises:
        ConfigError: there is none.
    """
    if engine.drafter is None:
        raise ConfigError("drafter: got none, expected an engine with a drafter")
    return engine.drafter


@dataclass(frozen=True)
class Reply:
    """One reply. `tokens` are the prompt's and the reply's, the stop token included."""

    tokens: tuple[int, ...]
    prompt_tokens: int
    rounds: tuple[RoundInfo, ...]
    stats: GenerationStats

    @property
    def reply(self) -> tuple[int, ...]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_tokens :]

    @property
    def round_anchors(self) -> list[int]:
        """Position of each round's anchor."""
        anchors, position = [], self.prompt_tokens  # the token of the prefill pass is the first anchor
        for done in self.rounds:
            anchors.append(position)
            position += done.committed
        return anchors

    @property
    def anchors(self) -> list[int]:
        """Every position of the reply that a token follows."""
        return list(range(self.prompt_tokens, len(self.tokens) - 1))


def decode(engine: Engine, prompt: Prompt, config: GenerationConfig) -> Reply:
    """Reply to a prompt.

    Raises:
        ConfigError, PromptError: as `stream_generate`.
    """
    session = new_session(engine, config)
    rounds, stats, length = [], None, 0
    for event in stream_generate(engine, prompt, config, session=session):
        stats, length = event.stats, event.prompt_tokens
        if event.round is not None:
            rounds.append(event.round)
    assert stats is not None
    return Reply(tuple(session.tokens), length, tuple(rounds), stats)


def blocks(
    target: Target, drafter: DraftModel, reply: Reply, anchors: Sequence[int]
) -> Iterator[tuple[int, DrafterContext]]:
    """Yield each anchor with the drafter's context as decoding has it there; runs on the owner thread.

    Args:
        anchors: positions in the reply, rising.
    """
    if not anchors:
        return
    taps = _taps(target, drafter, reply.tokens[: anchors[-1]])
    context, position = drafter.new_context(), 0
    for anchor in anchors:
        if anchor > position:
            drafter.append_context(taps[:, position:anchor], context, anchor - position)
            context.settle(anchor - position, anchor - position, anchor)
            position = anchor
        yield anchor, context


def _taps(target: Target, drafter: DraftModel, tokens: Sequence[int]) -> mx.array:
    """The target's hidden states of a text: [1, S, T*D]."""
    state, parts = target.new_state(1), []
    for start in range(0, len(tokens), _CHUNK):
        ids = list(tokens[start : start + _CHUNK])
        out = target.forward(
            mx.array([ids], dtype=mx.int32), state, taps=drafter.config.target_layer_ids, last_only=True
        )
        target.commit(state, len(ids))
        state.forget_future(start + len(ids))
        assert out.taps is not None
        mx.eval(out.taps)
        parts.append(out.taps)
    return mx.concatenate(parts, axis=1)
