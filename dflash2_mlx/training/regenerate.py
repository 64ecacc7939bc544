"""Lets the target answer the prompts itself: a drafter learns best from its target's own words.

Owns: which prompts are asked, and the file of replies, from which an interrupted run goes on exactly.

Reference: docs/dflash2.md 7.1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine import Engine
from ..errors import ConfigError
from .batch import ReplySettings, batch_replies
from .data import Item, prompt_of_turn, turns_to_answer
from .settings import Document


@dataclass(frozen=True)
class RegenerateEvent:
    """`done` of `total` replies are in the file; `found` of them were there before this run."""

    done: int
    total: int
    found: int


def regenerate(engine: Engine, items: Sequence[Item], file: Path, settings: ReplySettings) -> Iterator[RegenerateEvent]:
    """Write the target's replies to a JSONL file: every assistant turn of a chat in order, and one
    more where it ends with a question; the rest of a text.

    The first line says what the file was made with; every other one holds `item`, `turn`, `prompt` (its tokens'
    count), `tokens` (prompt and reply) and `text` (the reply). What the file already holds is not made again.

    Raises:
        ConfigError: the file was made with another target, other prompts or settings, named.
        PromptError: a prompt does not fit the target.
    """
    found = _open(file, _made_with(engine, items, settings))
    turns = [_turns(engine, item, settings) for item in items]
    total, before = sum(turns), len(found)
    with file.open("a", encoding="utf-8") as lines:
        for turn in range(max(turns, default=0)):
            waiting = [number for number, count in enumerate(turns) if turn < count and (number, turn) not in found]
            prompts = [_prompt(engine, items[number], number, turn, found, settings) for number in waiting]
            # Streams are numbered by what is asked, so that a draw does not depend on what was there already.
            streams = [(number << 16) + turn for number in waiting]
            for reply in batch_replies(engine, prompts, settings, streams=streams):
                number, prompt = waiting[reply.index], prompts[reply.index]
                said = reply.tokens[:-1] if reply.tokens[-1] in engine.stop_token_ids else reply.tokens
                line = {
                    "item": number, "turn": turn, "prompt": len(prompt), "tokens": [*prompt, *reply.tokens],
                    "text": engine.tokenizer.decode(said),
                }  # fmt: skip
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                lines.flush()
                found[number, turn] = line
                yield RegenerateEvent(len(found), total, before)
    if before == total:
        yield RegenerateEvent(total, total, before)


def read_regenerated(file: Path, *, max_length: int) -> list[Document]:
    """Documents of a file that `regenerate` finished; the replies are what is learned."""
    documents = []
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        reply = json.loads(line)
        tokens = np.array(reply["tokens"], dtype=np.int32)[:max_length]
        documents.append(Document(tokens, np.arange(len(tokens)) >= reply["prompt"]))
    return documents


def _made_with(engine: Engine, items: Sequence[Item], settings: ReplySettings) -> dict[str, Any]:
    made = asdict(settings)
    made.pop("batch")  # how fast, not what
    config = json.dumps(engine.target_config, sort_keys=True, default=str)
    prompts = json.dumps([item.content for item in items], sort_keys=True)
    return {"target": engine.target_name, "target_config": _short(config), "prompts": _short(prompts), **made}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _open(file: Path, made: Mapping[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    """What a file already holds; a line that was being written when its run ended is cut off."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made) + "\n", encoding="utf-8")
        return {}
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    try:
        first, *rest = [json.loads(line) for line in whole.splitlines()]
        theirs = dict(first)
        found = {(int(line["item"]), int(line["turn"])): line for line in rest}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{file}: got an unreadable line, expected the replies of an earlier run") from None
    for name, value in made.items():
        if theirs.get(name) != value:
            raise ConfigError(f"{file}: got {name} {value!r}, expected {theirs.get(name)!r} as in the file")
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    return found


def _turns(engine: Engine, item: Item, settings: ReplySettings) -> int:
    if "text" not in item.content:
        return turns_to_answer(item)
    return len(range(0, len(engine.tokenizer.encode(item.content["text"])), settings.max_length))


def _prompt(
    engine: Engine, item: Item, number: int, turn: int, found: Mapping[tuple[int, int], Any], settings: ReplySettings
) -> list[int]:
    if "text" not in item.content:
        said = [found[number, earlier]["text"] for earlier in range(turn)]
        return prompt_of_turn(item, engine.tokenizer, said)
    tokens = list(engine.tokenizer.encode(item.content["text"]))
    piece = tokens[turn * settings.max_length : (turn + 1) * settings.max_length]
    return piece[: settings.prompt_tokens or max(1, len(piece) // 2)]
