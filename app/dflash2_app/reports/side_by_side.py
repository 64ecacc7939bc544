"""What every side-by-side run has in common, in the terminal and on the web page: prompts, words, and who wrote what.

Owns: the two modes and their names, prompts that suit a model, the cut of a reply's text by token, and the sentences
about a verdict. Knows neither screen nor server, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import dflash2_mlx as d2
from dflash2_mlx.sampling.fields import TEMPERATURE

from ..settings.names import MINI
from .samples import DEFAULT_CODE, DEFAULT_QUESTION, MINI_QUESTION

Kind = Literal["plain", "accepted", "bonus"]

MODES = ("plain", "dflash2")


TITLES = {"plain": "plain decoding", "dflash2": "DFlash 2"}


WARM_UP_TOKENS = 16


SCREENFUL = 160


@dataclass(frozen=True)
class Example:
    """A prompt to begin with, and what it is an example of."""

    label: str
    prompt: str


MINI_EXAMPLES = (
    Example("Python", MINI_QUESTION),
    Example("Multiplication table", "Write the multiplication table of 18."),
    Example("Word problem", "Paul saves 6 dollars a week. After 9 weeks Paul spends 34 dollars. How many are left?"),
    Example("Units", "Convert 31 kilograms to grams."),
    Example("Sorting", "Sort these numbers from largest to smallest: 30, 20, 91, 42, 12, 43, 48"),
    Example("JSON", "Extract name, age, city and job as JSON: Viktor Diaz, a 42-year-old painter, lives in Rome."),
    Example(
        "Table",
        "Please write this as a Markdown table (name, city, job): Mia Tanaka, Prague, nurse; Sam Meyer, Denver, pilot; "
        "Leo Novak, Prague, painter",
    ),
    Example("Story", "Tell me a story about a turtle called Grace and a magnet."),
)


EXAMPLES = (
    Example("Python", DEFAULT_QUESTION),
    Example("Explain", "Explain how a binary search works, step by step, with an example."),
    Example("JSON", "List the planets of the solar system as a JSON array of {name, moons, diameter_km}."),
    Example("Translate", "Translate into French and German: The train leaves at eight, and we should not be late."),
    Example("Arithmetic", "A shop sells 14 boxes of 24 pencils at 0.35 each. What do they earn? Show every step."),
    Example("Story", "Write a short story about a lighthouse keeper who collects maps."),
    Example("Code to go on with", DEFAULT_CODE),
)


def examples(model: str) -> tuple[Example, ...]:
    """Prompts to begin with for a model of this name."""
    return MINI_EXAMPLES if model == MINI else EXAMPLES


class TokenTexts:
    """Cuts the text of a reply's events by token.

    The joined pieces are the text of the events, whatever the tokens are; the border between two tokens may be off by
    a character where one ends inside of it.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._recent: list[int] = []
        self._held = 0  # characters of earlier tokens that no event has told yet

    def pieces(self, event: d2.GenerationEvent) -> list[str]:
        """One text per token of the event; the text of an event without tokens is lost to nobody: it comes first."""
        # Decoded behind a few earlier tokens: alone, a token may lose its leading blank.
        before = len(self._tokenizer.decode(self._recent)) if self._recent else 0
        ids, told, pieces = list(event.token_ids), 0, []
        length = before
        for count in range(1, len(ids) + 1):
            length = len(self._tokenizer.decode([*self._recent, *ids[:count]]))
            end = min(len(event.text), max(told, self._held + length - before))
            pieces.append(event.text[told:end])
            told = end
        if event.text[told:]:
            if not pieces:
                pieces.append("")
            pieces[-1] += event.text[told:]
        self._held = max(0, self._held + length - before - len(event.text))
        self._recent = [*self._recent, *ids][-4:]
        return pieces


class Blocks:
    """Cuts the text of a round into what the drafter proposed and what the target added."""

    def __init__(self, engine: d2.Engine):
        self._texts = TokenTexts(engine.tokenizer)

    def parts(self, event: d2.GenerationEvent, mode: str) -> list[tuple[str, Kind]]:
        if mode == "plain":
            return [(event.text, "plain")]
        accepted = event.round.num_accepted if event.round is not None else 0
        pieces = self._texts.pieces(event)
        return [("".join(pieces[:accepted]), "accepted"), ("".join(pieces[accepted:]), "bonus")]


def token_text(engine: d2.Engine, token: int) -> str:
    """One token alone, as text."""
    return str(engine.tokenizer.decode([token]))


def difference(engine: d2.Engine, verdict: d2.Verdict) -> str:
    """Where the two texts part, in words; empty when they do not."""
    found = verdict.first_difference
    if found is None:
        return ""
    words = {side: _word(engine, found, side) for side in MODES}
    text = f"from token {found['index']} on: plain {words['plain']}, DFlash 2 {words['dflash2']}"
    gap = found["logit_gap"]
    return text if gap is None else f"{text}, logit gap {gap:.4g}"


def _word(engine: d2.Engine, found: Mapping[str, Any], side: str) -> str:
    token = found[f"{side}_token"]
    return "the end" if token is None else repr(token_text(engine, token))  # a side that stopped has no token there


def notes(
    engine: d2.Engine, sampling: d2.SamplingConfig, dflash2: d2.GenerationResult, verdict: d2.Verdict
) -> list[str]:
    """What the reader of a verdict should know."""
    found = list(dflash2.stats.notices)
    if dflash2.stats.fallback_reason:
        found.append(f"the second run was not drafted: {dflash2.stats.fallback_reason}")
    if engine.row_cost_note:
        found.append(engine.row_cost_note)
    if not verdict.identical and not sampling.greedy and not sampling.coupled:
        found.append("rejection keeps the distribution, not the very text; --lossless-mode coupled keeps both")
    return found


def subject(engine: d2.Engine, config: d2.GenerationConfig) -> str:
    """What runs, and how it draws, in one line."""
    sampling = config.sampling
    if sampling.greedy:
        drawn = "greedy"
    else:
        drawn = f"temperature {sampling.temperature:g}, seed {sampling.seed}, {sampling.lossless_mode}"
    width = config.block_size or engine.block_size
    shown = f"block size {width}" if config.verify_mode == "dflash" else f"adaptive, at most {width} rows"
    return f"target {engine.target_name} · drafter {engine.drafter_name} · {shown} · {drawn}"


MOST_TOKENS = 4096  # of one race: both replies are kept whole, on the page and in its file


MOST_TEMPERATURE = TEMPERATURE.request_most
