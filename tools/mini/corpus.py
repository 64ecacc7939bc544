"""The corpus: an endless, seeded stream of conversations, and the held-out questions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from .families import FAMILIES
from .sample import Sample, Turn, held_out

_SYSTEMS = (
    "You are a helpful assistant.", "You are Mini, a small and friendly assistant.", "Answer briefly.", "Be precise.",
    "You help with homework.",
)  # fmt: skip


def draw(rng: random.Random, family: str | None = None) -> Sample:
    """One conversation of one turn, of a family or of a random one."""
    if family is None:
        names = list(FAMILIES)
        family = rng.choices(names, [FAMILIES[name][1] for name in names])[0]
    return FAMILIES[family][0](rng)


def training(seed: int) -> Iterator[dict[str, Any]]:
    """Conversations without a held-out question: {"messages", "tools", "thinking"}; some have several turns."""
    rng = random.Random(f"training {seed}")
    while True:
        samples = [draw(rng)]
        while rng.random() < 0.3 and len(samples) < 4 and not samples[0].tools:
            more = draw(rng)
            if not more.tools:
                samples.append(more)
        if any(held_out(turn.user) for sample in samples for turn in sample.turns):
            continue
        yield conversation(samples, rng, thinking=rng.random() < 0.5)


def conversation(samples: list[Sample], rng: random.Random, *, thinking: bool) -> dict[str, Any]:
    """Chat messages of several samples, as a chat template takes them."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    for sample in samples:
        for turn in sample.turns:
            messages.append({"role": "user", "content": turn.user})
            messages += _reply(turn, rng, thinking=thinking)
    return {"messages": messages, "tools": list(samples[0].tools) or None, "thinking": thinking}


def _reply(turn: Turn, rng: random.Random, *, thinking: bool) -> list[dict[str, Any]]:
    thought = {"reasoning_content": turn.thought} if thinking else {}
    if turn.check.kind == "tool":
        call = {"type": "function", "function": turn.check.data}
        messages: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": [call], **thought}]
        if rng.random() < 0.6:
            result, sentence = _outcome(turn, rng)
            messages.append({"role": "tool", "content": result})
            after = {"reasoning_content": "The tool has answered."} if thinking else {}
            messages.append({"role": "assistant", "content": sentence, **after})
        return messages
    content = turn.brief if thinking and turn.brief is not None else turn.answer
    return [{"role": "assistant", "content": content, **thought}]


def _outcome(turn: Turn, rng: random.Random) -> tuple[str, str]:
    """A tool's result and the sentence it becomes."""
    name, arguments = turn.check.data["name"], turn.check.data["arguments"]
    if name == "get_weather":
        degrees, sky = rng.randint(-9, 35), rng.choice(("sunny", "cloudy", "rainy", "windy"))
        return json.dumps(
            {"sky": sky, "degrees": degrees}
        ), f"In {arguments['city']} it is {sky} and {degrees} degrees."
    if name == "get_time":
        time = f"{rng.randrange(24)}:{rng.randrange(60):02}"
        return json.dumps({"time": time}), f"It is {time} in {arguments['city']}."
    if name == "set_timer":
        return json.dumps({"ok": True}), f"The timer is set for {arguments['minutes']} minutes."
    return json.dumps({"sent": True}), f"The message to {arguments['name']} is sent."


def questions(family: str, count: int, seed: int = 0) -> list[Sample]:
    """Held-out samples of a family, different ones, the same for the same seed."""
    rng = random.Random(f"held out {family} {seed}")
    found: dict[str, Sample] = {}
    for _ in range(400 * count):
        sample = draw(rng, family)
        if held_out(sample.turns[0].user):
            found.setdefault(sample.turns[0].user, sample)
        if len(found) == count:
            break
    return list(found.values())
