"""Calling tools: the system message describes them, the reply is a call, and a result becomes a sentence."""

from __future__ import annotations

import random
from typing import Any

from ..sample import Check, Sample, Turn
from ..words import CITIES, NAMES


def _tool(name: str, description: str, /, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
        },
    }


TOOLS = {
    "get_weather": _tool("get_weather", "Get the weather of a city", city="string"),
    "get_time": _tool("get_time", "Get the local time of a city", city="string"),
    "set_timer": _tool("set_timer", "Set a timer", minutes="integer"),
    "send_message": _tool("send_message", "Send a message to a person", name="string", text="string"),
}
_TEXTS = ("I am late", "See you soon", "Happy birthday", "Call me back", "Dinner is ready", "Good luck")


def tool_call(rng: random.Random) -> Sample:
    offered = rng.sample(sorted(TOOLS), rng.randint(1, 3))
    name = rng.choice(offered)
    arguments: dict[str, Any]
    if name == "get_weather":
        arguments = {"city": rng.choice(CITIES)}
        asks = ("What is the weather in {city}?", "How is the weather in {city} today?", "Weather in {city}?")
    elif name == "get_time":
        arguments = {"city": rng.choice(CITIES)}
        asks = ("What time is it in {city}?", "Tell me the time in {city}.", "Time in {city}?")
    elif name == "set_timer":
        arguments = {"minutes": rng.randint(1, 90)}
        asks = ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Timer: {minutes} minutes")
    else:
        arguments = {"name": rng.choice(NAMES), "text": rng.choice(_TEXTS)}
        asks = ('Send {name} the message "{text}".', 'Write to {name}: "{text}"', 'Tell {name} "{text}".')
    thought = f"The tool {name} does this."
    check = Check("tool", {"name": name, "arguments": arguments})
    turn = Turn(rng.choice(asks).format(**arguments), "", thought, check)
    return Sample("tools", (turn,), tools=tuple(TOOLS[tool] for tool in offered))
