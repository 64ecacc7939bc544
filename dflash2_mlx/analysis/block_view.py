"""One block of a reply taken apart: what the drafter had to choose from, the path the selector took, what was kept.

Owns: the record of a block, and its computation from the tokens before it. Proposal, noise and acceptance are those
of decoding, so a block is shown as it was decoded (on a GPU a near-tie may fall differently, as the target reads the
tokens before the block in other portions here).

Reference: DFlash 2 (Inco AI, 2026), figure 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np

from ..device.runtime import owner
from ..drafters.dflash2.context import DrafterContext
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine
from ..errors import PromptError, SettingError
from ..generation.config import GenerationConfig
from ..generation.text import Prompt, render_prompt
from ..sampling.acceptance import Proposal
from ..sampling.config import SamplingConfig
from ..sampling.sampler import TokenChooser
from ..targets.base import Target
from ..targets.state import TargetState
from .replies import drafter_of


@dataclass(frozen=True)
class BlockRow:
    """One drafted position. The lists have an entry per candidate, in the drafter's order, likeliest first.

    `logits` are the drafter's own, before the selector; `probabilities` their softmax among the candidates.
    `path_probabilities` is what the walk chose from: with the selector's scores from the token before, and at the
    request's temperature (1 where it is greedy).
    """

    candidates: tuple[int, ...]
    logits: tuple[float, ...]
    probabilities: tuple[float, ...]
    path_probabilities: tuple[float, ...]
    chosen: int

    @property
    def likeliest(self) -> int:
        """What a drafter without a selector would take."""
        return self.candidates[int(np.argmax(self.logits))]


@dataclass(frozen=True)
class BlockView:
    """One round: `rows` for the drafted positions after the anchor, and what the target made of them.

    `position` is the anchor's, counted from the prompt's first token. `target_tokens` are the target's own at
    the positions it got to: the accepted ones, then the one it added. `selector`: whether the drafter has one.
    """

    position: int
    anchor: int
    rows: tuple[BlockRow, ...]
    num_accepted: int
    target_tokens: tuple[int, ...]
    selector: bool

    @property
    def width(self) -> int:
        """Rows of the block, anchor included."""
        return len(self.rows) + 1

    @property
    def proposal(self) -> tuple[int, ...]:
        """The drafted tokens, in order."""
        return tuple(row.chosen for row in self.rows)


def view_block(
    engine: Engine, prompt: Prompt, config: GenerationConfig, reply: Sequence[int], *, width: int | None = None
) -> BlockView:
    """Draft and verify the block that follows a piece of a reply.

    Args:
        prompt: as in `stream_generate`.
        config: as the reply was decoded with; a sampled one needs its seed.
        reply: the reply's tokens so far; the last one is the block's anchor.
        width: rows of the block, 2..block_size; None takes the config's, else the drafter's.
    Raises:
        ConfigError, PromptError: no drafter, a width or token it cannot have, no seed, or no room left.
    """
    drafter = drafter_of(engine)
    rendered = render_prompt(
        engine.tokenizer, prompt, chat_template=config.chat_template, template_kwargs=config.chat_template_kwargs
    )
    rows = width or config.block_size or drafter.config.block_size
    _check(engine, drafter, config.sampling, len(rendered.ids), reply, rows)
    return _Walk(engine, drafter, config, rendered.ids, list(reply)).block(rows)


def _check(
    engine: Engine, drafter: DraftModel, sampling: SamplingConfig, prompt_tokens: int, reply: Sequence[int], rows: int
) -> None:
    if not 2 <= rows <= drafter.config.block_size:
        raise SettingError(f"width: got {rows}, expected an integer in 2..{drafter.config.block_size}")
    if not reply:
        raise PromptError("reply: got no tokens, expected at least the one the block begins with")
    most = min(engine.target.spec.embedding_rows, engine.target.spec.vocab_size)
    for token in reply:
        if not 0 <= token < most:
            raise PromptError(f"reply: got token id {token}, expected ids in 0..{most - 1}")
    limit, length = engine.context_length, prompt_tokens + len(reply)
    if limit is not None and length > limit:
        raise PromptError(f"reply: got {length} tokens with the prompt, expected at most the model's {limit}")
    if not sampling.greedy and sampling.seed is None:
        raise SettingError("seed: got none, expected the one the reply was sampled with")


class _Walk:
    """The tokens before the block, read once more, then the block itself."""

    def __init__(
        self, engine: Engine, drafter: DraftModel, config: GenerationConfig, prompt: list[int], reply: list[int]
    ):
        self._target: Target = engine.target
        self._drafter, self._sampling, self._chunk = drafter, config.sampling, config.prefill_chunk
        self._prompt, self._reply = prompt, reply

    def block(self, width: int) -> BlockView:
        before = [*self._prompt, *self._reply[:-1]]
        state, context = owner().call(lambda: (self._target.new_state(1), self._drafter.new_context(1)))
        for start in range(0, len(before), self._chunk):  # one call each: other replies get their turn in between
            part = before[start : start + self._chunk]
            owner().call(partial(self._read, part, start, state, context))
        return owner().call(lambda: self._draft(len(before), width, state, context))

    def _read(self, part: list[int], start: int, state: TargetState, context: DrafterContext) -> None:
        rows, taps = len(part), self._drafter.config.target_layer_ids
        out = self._target.forward(mx.array([part], dtype=mx.int32), state, taps=taps, last_only=True)
        assert out.taps is not None
        self._target.commit(state, rows)
        state.forget_future(start + rows)
        self._drafter.append_context(out.taps, context, rows)
        context.settle(rows, rows, start + rows)
        mx.eval(state.arrays(), context.arrays())

    def _draft(self, position: int, width: int, state: TargetState, context: DrafterContext) -> BlockView:
        sampling, target = self._sampling, self._target
        chooser = TokenChooser(sampling, target.spec.vocab_size, sampling.seed or 0, self._prompt)
        chooser.record(mx.array([self._reply], dtype=mx.int32), mx.array([len(self._reply)], dtype=mx.int32))
        start, anchor = mx.array([position], dtype=mx.int32), mx.array([self._reply[-1]], dtype=mx.int32)
        shared = chooser.shared_noise(start, width) if sampling.coupled and not sampling.greedy else None
        # A walk without noise is the greedy one, and tells its probabilities as well.
        noise = chooser.draft_noise(start, width - 1, shared) or mx.zeros_like
        temperature = 1.0 if sampling.greedy else sampling.temperature
        offered = self._drafter.propose(anchor, context, width, target, temperature=temperature, noise=noise)
        assert offered.q is not None
        block = mx.concatenate([anchor[:, None], offered.tokens], axis=1)
        verified = target.forward(block, state)
        accepted, _ = chooser.choose(verified.logits, start, offered, shared=shared)
        mx.eval(offered.tokens, offered.candidates, offered.unary, offered.q, accepted.num_accepted, accepted.tokens)
        kept, own = int(np.array(accepted.num_accepted)[0]), np.array(accepted.tokens)[0]
        return BlockView(
            position,
            self._reply[-1],
            _rows(offered),
            kept,
            tuple(int(token) for token in own[: kept + 1]),
            self._drafter.config.selector_rank is not None,
        )


def _rows(offered: Proposal) -> tuple[BlockRow, ...]:
    parts = (offered.candidates, offered.unary, offered.q)
    ids, unary, path = (np.array(part[0]) for part in parts if part is not None)
    return tuple(
        BlockRow(
            tuple(ids[row].tolist()),
            tuple(unary[row].tolist()),
            tuple(_softmax(unary[row]).tolist()),
            tuple(path[row].tolist()),
            int(chosen),
        )
        for row, chosen in enumerate(np.array(offered.tokens)[0])
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())
