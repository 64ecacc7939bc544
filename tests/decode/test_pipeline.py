"""The round loop never waits for the host: round n+1 is queued before the tokens of round n are read.

On the CPU back-end the time that saves cannot be measured, so events are counted instead. For the length of a
test, `mx.eval`, `mx.async_eval` and every method by which an array's value can reach Python are wrapped and
noted in one list; NumPy conversions go past these methods, so a test of its own keeps NumPy out of the modules
that run in a round.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx
from dflash2_mlx.decode.request import PrefillProgress, RoundResult
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from dflash2_mlx.sampling.config import SamplingConfig
from tests.runs import PROMPT, lively_reply, lively_target, run
from tests.scripted import ScriptedDrafter, ramp
from tests.tiny import make_tiny_drafter

PACKAGE = Path(dflash2_mlx.__file__).parent
READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__iter__", "__repr__", "__dlpack__")
QUEUE, WAIT, READ = "queue", "wait", "read"
WIDTH = 5
TOKENS = 20

SAMPLINGS = {
    "greedy": SamplingConfig(),
    "sampled, rejection": SamplingConfig(temperature=0.9, top_p=0.95, top_k=20, min_p=0.02),
    "sampled, coupled": SamplingConfig(temperature=0.9, seed=3),
    "greedy, penalties": SamplingConfig(presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2),
    "sampled, penalties and bias": SamplingConfig(temperature=0.7, repetition_penalty=1.1, logit_bias={5: -2.0}),
}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What happened, in order. Only host reads and queueing appear here."""
    log: list[str] = []

    def spy(owner: Any, name: str, kind: str) -> None:
        real = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            log.append(kind)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    spy(mx, "async_eval", QUEUE)
    for name in ("eval", "synchronize"):
        spy(mx, name, WAIT)
    for name in READS:
        spy(mx.array, name, READ)
    return log


def make_session(kind: str, family: str) -> Session:
    target = lively_target(family)
    if kind == "plain":
        return PlainSession(target)
    if kind == "random drafter":
        return DFlash2Session(target, make_tiny_drafter())
    return DFlash2Session(target, ScriptedDrafter([*PROMPT, *lively_reply(family)], ramp(WIDTH - 1)))


@pytest.mark.parametrize("logprobs", [None, 2])
def test_what_is_queued_and_what_is_read(logprobs: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read was queued as it is, and what is queued is never a buffer.

    A slice taken by the host would be a new array, and its evaluation would wait behind the next round. A call that
    has a K/V buffer among its outputs holds it until the call ends, and the next write might copy all of it.
    """
    session = make_session("scripted drafter", "qwen3_5")
    queued: list[mx.array] = []
    strangers: list[mx.array] = []
    real_queue, real_read = mx.async_eval, mx.array.tolist

    def queue(*arrays: mx.array) -> None:
        buffers = session.memory.arrays()
        assert not any(array is buffer for array in arrays for buffer in buffers)
        queued.extend(arrays)
        real_queue(*arrays)

    def read(array: mx.array) -> Any:
        if not any(array is one for one in queued):
            strangers.append(array)
        return real_read(array)

    monkeypatch.setattr(mx, "async_eval", queue)
    monkeypatch.setattr(mx.array, "tolist", read)
    run(session, Request(PROMPT, TOKENS, width=WIDTH, logprobs=logprobs))
    assert len(queued) >= 5
    assert strangers == []


def steps(
    session: Session, request: Request, events: list[str]
) -> Iterator[tuple[PrefillProgress | RoundResult, list[str]]]:
    """Each step's result with the events inside that step."""
    session.begin(request)
    while True:
        events.clear()
        result = session.step()
        if result is None:
            return
        yield result, list(events)


def round_events(session: Session, request: Request, events: list[str]) -> list[list[str]]:
    """Events of the steps that returned tokens."""
    return [seen for result, seen in steps(session, request, events) if isinstance(result, RoundResult)]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("kind", ["plain", "random drafter", "scripted drafter"])
def test_next_round_is_queued_before_the_last_is_read(kind: str, sampling: SamplingConfig, events: list[str]) -> None:
    session = make_session(kind, "qwen3")
    width = 1 if kind == "plain" else WIDTH
    request = Request(PROMPT, TOKENS, sampling=sampling, seed=3, width=width)
    check_order(round_events(session, request, events))


def check_order(rounds: list[list[str]], *, reads: int = 1) -> None:
    """Each step ends with its reads and waits for nothing else; one pass is on its way when a round is read.

    The exceptions: the token of the prefill pass may be read alone, and nothing is queued past the last round.
    """
    assert len(rounds) >= 5
    queued = 1  # the prefill step queued its token
    for number, seen in enumerate(rounds, start=1):
        assert seen.count(WAIT) == 0, f"step {number} waited"
        assert seen.count(READ) == reads, f"step {number} read {seen.count(READ)} times"
        assert seen[-reads:] == [READ] * reads, f"step {number} queued after it read"
        queued += seen.count(QUEUE)
        if 1 < number < len(rounds):
            assert queued - number == 1, f"step {number} read a round with {queued - number} behind it"


@pytest.mark.parametrize("family", ["qwen3_5", "llama_sliding", "muse_glimmer", "qwen3_moe"])
def test_every_kind_of_layer_stays_on_the_device(family: str, events: list[str]) -> None:
    for kind in ("plain", "scripted drafter"):
        session = make_session(kind, family)
        width = 1 if kind == "plain" else WIDTH
        check_order(round_events(session, Request(PROMPT, 2 * TOKENS, width=width), events))


def test_logprobs_are_read_with_the_round(events: list[str]) -> None:
    session = make_session("scripted drafter", "qwen3")
    request = Request(PROMPT, TOKENS, width=WIDTH, logprobs=3)
    # The packed tokens, and the three arrays that were queued in the same call.
    check_order(round_events(session, request, events), reads=4)


def test_spy_sees_every_way_to_read(events: list[str]) -> None:
    array = mx.array([1, 0])
    reads = [array.tolist, array[0].item, lambda: bool(array[0]), lambda: int(array[0]), lambda: float(array[0]),
             lambda: [7][array[1]], lambda: list(array), lambda: repr(array)]  # fmt: skip
    for read in reads:
        events.clear()
        read()
        assert READ in events
    events.clear()
    mx.eval(array + 1)
    assert events == [WAIT]


def test_no_numpy_where_rounds_run() -> None:
    """NumPy reads an array through its buffer, which the spy cannot see."""
    rooms = ("sampling", "layers", "drafters", "targets", "kernels")
    modules = [PACKAGE / "decode/session.py", *(path for room in rooms for path in (PACKAGE / room).rglob("*.py"))]
    modules = [path for path in modules if path.name != "constraints.py"]  # a mask is the host's
    assert len(modules) > 30
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "numpy" for name in names), path.name
