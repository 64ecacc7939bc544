"""Judges an answer: does it say what the question asked for, whatever the words around it?"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from .sample import Check


def correct(answer: str, check: Check) -> bool:
    """Whether a reply (without its thoughts) is right."""
    return _KINDS[check.kind](answer.strip(), check.data)


def visible(text: str) -> str:
    """A reply without its thoughts."""
    return text.rsplit("</think>", 1)[-1].strip()


def _number(answer: str, expected: int) -> bool:
    """The last number of the answer that is set in bold, else the last of all."""
    found = re.findall(r"\*\*(-?\d+)[^*]*\*\*", answer) or re.findall(r"-?\d+", answer)
    return bool(found) and int(found[-1]) == expected


def _bold(answer: str, expected: str) -> bool:
    found = re.findall(r"\*\*([^*]+)\*\*", answer)
    return bool(found) and found[-1] == expected


def _json(answer: str, expected: Any) -> bool:
    match = re.search(r"\{.*\}", answer, re.DOTALL)
    try:
        return match is not None and json.loads(match.group()) == expected
    except ValueError:
        return False


def _tool(answer: str, expected: Any) -> bool:
    match = re.search(r"<tool_call>(.*?)</tool_call>", answer, re.DOTALL)
    try:
        return match is not None and json.loads(match.group(1)) == expected
    except ValueError:
        return False


def _python(answer: str, expected: dict[str, Any]) -> bool:
    """Run the function and the reference on the same arguments, in a process of its own."""
    match = re.search(r"```python\n(.*?)```", answer, re.DOTALL)
    defined = re.findall(r"^def (\w+)\(", match.group(1), re.MULTILINE) if match else []
    if match is None or not defined:
        return False
    name = expected["name"] if expected["named"] else defined[-1]  # free to choose where none was asked for
    called = "[{}(*arguments) for arguments in {!r}]"
    mine, theirs = called.format(name, expected["calls"]), called.format(expected["name"], expected["calls"])
    program = (
        f"mine = {{}}; theirs = {{}}\nexec({match.group(1)!r}, mine)\nexec({expected['source']!r}, theirs)\n"
        f"assert eval({mine!r}, mine) == eval({theirs!r}, theirs)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, timeout=5)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


_KINDS = {
    "number": _number,
    "bold": _bold,
    "json": _json,
    "tool": _tool,
    "python": _python,
    "exact": lambda answer, expected: answer == expected,
    "contains": lambda answer, expected: expected in answer,
    "words": lambda answer, expected: all(word in answer for word in expected),
}
