"""A race: one prompt answered plainly and with DFlash 2 by the same loaded model, one after the other.

Owns: what a race may ask for, the order of its runs, and its events. Knows no HTTP. The runs follow each other, so that
neither slows the other; both meet their shapes in a short warm-up first, and neither uses a prefix cache, or the second
would find its prompt read. Times are the library's own: seconds since
the lane's first token, without what a slow reader costs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...engine.model import Prompt
from ...errors import AppError
from ...reports.side_by_side import (
    MODES,
    MOST_TEMPERATURE,
    MOST_TOKENS,
    SCREENFUL,
    WARM_UP_TOKENS,
    TokenTexts,
    difference,
    notes,
    subject,
    token_text,
)
from ..api.request import Draft, set_thinking, thinks
from ..http.errors import ApiError, from_library, refuse
from ..http.fields import Fields
from ..http.wire import Frame
from ..serving.request import Ask
from ..serving.source import Served

if TYPE_CHECKING:
    import dflash2_mlx as d2
    from dflash2_mlx.analysis import BlockRow, BlockView

SCHEMA, VERSION = "dflash2-race", 1


Others = Callable[[], int]


@dataclass(frozen=True)
class RaceOrder:
    """What one race asks for; None is the model's own.

    Sampling is always coupled: with one seed both lanes draw alike, so that the texts must be equal.
    """

    model: str
    prompt: str
    system: str | None
    max_tokens: int
    temperature: float
    seed: int
    block_size: int | None
    verify_mode: str | None
    thinking: bool | None

    @classmethod
    def read(cls, fields: Fields) -> RaceOrder:
        """Take the fields of a race.

        Raises:
            ApiError: a value it cannot have.
        """
        model, prompt = fields.required_text("model"), fields.required_text("prompt")
        if not prompt.strip():
            raise refuse("prompt", prompt, "at least one word")
        mode = fields.text("verify_mode")
        if mode == "off":
            raise ApiError(
                "verify_mode: got 'off', expected 'dflash' or 'adaptive': a race shows drafting beside plain decoding",
                param="verify_mode",
            )
        if mode not in (None, "dflash", "adaptive"):
            raise refuse("verify_mode", mode, "'dflash' or 'adaptive'")
        temperature = fields.number("temperature", 0, MOST_TEMPERATURE)
        return cls(
            model=model,
            prompt=prompt,
            system=fields.text("system") or None,
            max_tokens=fields.integer("max_tokens", 1, MOST_TOKENS) or SCREENFUL,
            temperature=temperature or 0.0,
            seed=fields.integer("seed", 0, 2**64 - 1) or 0,
            block_size=fields.integer("block_size", 2),
            verify_mode=mode,
            thinking=fields.boolean("thinking"),
        )

    def settle(self, served: Served) -> Ask:
        """This order for a loaded model.

        Raises:
            ApiError: it has no drafter, or cannot do what is asked for.
        """
        check_drafter(served)
        draft = Draft(served)
        chats = served.tokenizer.has_chat_template and served.defaults.chat_template
        if self.system is not None and not chats:
            raise refuse("system", self.system, f"none: {served.name} has no chat template")
        self._think(draft)
        draft.sampling |= {"temperature": self.temperature, "seed": self.seed, "lossless_mode": "coupled"}
        given = {"max_tokens": self.max_tokens, "block_size": self.block_size, "verify_mode": self.verify_mode}
        draft.config |= {name: value for name, value in given.items() if value is not None}
        draft.config |= {"mode": "dflash2", "logprobs": None}
        prompt: Prompt = self.prompt
        if self.system is not None:
            prompt = [{"role": "system", "content": self.system}, {"role": "user", "content": self.prompt}]
        return draft.finish(prompt)

    def _think(self, draft: Draft) -> None:
        if self.thinking is None:
            return
        if thinks(draft.served):
            set_thinking(draft, self.thinking, "thinking")
        elif self.thinking:
            raise refuse("thinking", True, f"nothing: {draft.served.name} does not think")


def check_drafter(served: Served) -> None:
    """Refuse to race plain decoding against itself.

    Raises:
        ApiError: nothing is drafted; with the reason that every other place gives.
    """
    report = served.report
    if report.dflash_active:
        return
    reason = report.dflash_fallback_reason or f"DFlash is off for {served.name}"
    raise ApiError(
        f"model: got {served.name!r}, expected one that drafts: {reason}", param="model", code="dflash_not_active"
    )


class Race:
    """One race, ready to run.

    Args:
        others: how many other replies share the machine now.
    Raises:
        ApiError: see `RaceOrder.settle`; also a prompt that cannot be used.
    """

    def __init__(self, served: Served, order: RaceOrder, others: Others, version: str):
        import dflash2_mlx as d2

        self._served, self._order, self._others, self._version = served, order, others, version
        # Without the prefix cache: see above.
        self._pair = replace(served.pair, loaded=replace(served.pair.loaded, prefix_cache=None))
        try:
            ask = order.settle(served)
            self._prompt, self._config, self._notes = ask.prompt, ask.config, [*ask.notes, *served.notes]
            self._stream("dflash2").close()  # whoever decodes says what is wrong with a prompt
        except (d2.Dflash2Error, AppError) as error:
            raise from_library(error) from None

    def events(self) -> Generator[Frame, None, None]:
        """Run it; closing the iterator stops it at the next event."""
        yield Frame(self._head(), "run")
        for mode in MODES:
            yield from self._warm_up(mode)
        results = {}
        for mode in MODES:
            results[mode] = yield from self._lane(mode)
        yield Frame(self._verdict(results), "verdict")

    def _head(self) -> dict[str, Any]:
        from dflash2_mlx import analysis

        engine, config, sampling = self._served.engine, self._config, self._config.sampling
        machine = analysis.describe_machine()
        return {
            "schema": SCHEMA, "version": VERSION, "id": secrets.token_hex(8), "created": _now(),
            "program": f"dflash2-mlx {self._version}",
            "machine": {name: machine[name] for name in ("chip", "system", "backend", "memory_bytes")},
            "request": {name: value for name, value in asdict(self._order).items() if value is not None},
            "target": engine.target_name, "drafter": engine.drafter_name, "subject": subject(engine, config),
            "block_size": engine.block_size, "width": config.block_size or engine.block_size,
            "verify_mode": config.verify_mode, "max_tokens": config.max_tokens,
            "sampling": {
                "greedy": sampling.greedy, "temperature": sampling.temperature, "top_p": sampling.top_p,
                "top_k": sampling.top_k, "min_p": sampling.min_p, "seed": sampling.seed,
                "lossless_mode": sampling.lossless_mode,
            },
        }  # fmt: skip

    def _stream(self, mode: str, **changes: Any) -> Generator[d2.GenerationEvent, None, None]:
        return self._pair.stream_generate(self._prompt, replace(self._config, mode=mode, **changes))

    def _warm_up(self, mode: str) -> Iterator[Frame]:
        """Let a mode meet its shapes once, or the first lane would pay for the second."""
        yield Frame({"lane": mode, "tokens": 0}, "warm_up")
        with closing(self._stream(mode, max_tokens=min(WARM_UP_TOKENS, self._config.max_tokens))) as events:
            for event in events:
                yield Frame({"lane": mode, "tokens": event.stats.generated_tokens}, "warm_up")

    def _lane(self, mode: str) -> Generator[Frame, None, d2.GenerationResult]:
        import dflash2_mlx as d2

        yield Frame({"lane": mode}, "lane")
        others, kept = self._others(), []
        texts = TokenTexts(self._served.tokenizer)
        with closing(self._stream(mode)) as events:
            for event in events:
                kept.append(event)
                others = max(others, self._others())
                if event.token_ids or event.text or event.finish_reason is not None:
                    yield Frame(_landing(mode, event, texts), "round")
                else:
                    yield Frame({"lane": mode, "done": event.prefilled, "total": event.prompt_tokens}, "prefill")
        result = d2.collect(self._served.engine, iter(kept))
        figures = {name: value for name, value in result.to_dict().items() if name not in ("text", "token_ids")}
        yield Frame({"lane": mode, "others": others, "stats": figures}, "lane_end")
        return result

    def _verdict(self, results: dict[str, d2.GenerationResult]) -> dict[str, Any]:
        import dflash2_mlx as d2

        engine, config = self._served.engine, self._config
        verdict = d2.compare_runs(engine, self._prompt, config, results["plain"], results["dflash2"])
        return {
            **verdict.to_dict(),
            "difference": difference(engine, verdict) or None,
            "notes": [*self._notes, *notes(engine, config.sampling, results["dflash2"], verdict)],
        }


def _landing(mode: str, event: d2.GenerationEvent, texts: TokenTexts) -> dict[str, Any]:
    """One commit: the tokens with their texts, and when they were there."""
    pieces = texts.pieces(event)
    ids: list[int | None] = list(event.token_ids)
    ids += [None] * (len(pieces) - len(ids))  # text that was held back, when no token follows any more
    done = event.round
    return {
        "lane": mode,
        "t": event.stats.decode_s,
        "tokens": [[token, text] for token, text in zip(ids, pieces, strict=True)],
        "num_accepted": None if done is None else done.num_accepted,
        "committed": len(event.token_ids) if done is None else done.committed,
        "width": None if done is None else done.width,
        "proposal": None if done is None else list(done.proposal),
        "finish_reason": event.finish_reason,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def show_block(served: Served, order: RaceOrder, reply: list[int], width: int | None) -> dict[str, Any]:
    """A block of a race, computed anew from the tokens before it.

    Raises:
        ApiError: tokens or width it cannot have.
    """
    import dflash2_mlx as d2
    from dflash2_mlx import analysis

    try:
        ask = order.settle(served)
        view = analysis.view_block(served.engine, ask.prompt, ask.config, reply, width=width)
    except d2.Dflash2Error as error:
        raise from_library(error) from None
    return _shown_block(served, view)


def _shown_block(served: Served, view: BlockView) -> dict[str, Any]:
    def word(token: int) -> dict[str, Any]:
        return {"id": token, "text": token_text(served.engine, token)}

    def row(number: int, found: BlockRow) -> dict[str, Any]:
        scores = zip(found.candidates, found.logits, found.probabilities, found.path_probabilities, strict=True)
        return {
            "candidates": [
                {**word(token), "logit": logit, "probability": own, "path_probability": path}
                for token, logit, own, path in scores
            ],
            "chosen": word(found.chosen),
            "likeliest": word(found.likeliest),
            "target": word(view.target_tokens[number]) if number < len(view.target_tokens) else None,
            "accepted": number < view.num_accepted,
        }

    return {
        "position": view.position,
        "anchor": word(view.anchor),
        "width": view.width,
        "selector": view.selector,
        "num_accepted": view.num_accepted,
        "rows": [row(number, found) for number, found in enumerate(view.rows)],
        "bonus": word(view.target_tokens[-1]),
        "proposal": list(view.proposal),
    }
