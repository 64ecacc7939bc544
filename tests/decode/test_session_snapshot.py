"""Snapshots: a session restored from one goes on exactly like the session it was taken of."""

import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.request import Request
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Session
from tests.pairs import bootstrap_pair
from tests.runs import thinned
from tests.tiny import make_tiny_drafter, make_tiny_target

PROMPT = [5, 17, 101, 9, 33, 64, 2, 90, 77, 41, 12]


def reply(session: Session, prompt: list[int], width: int = 5) -> list[int]:
    session.begin(Request(prompt, 20, width=width))
    tokens: list[int] = []
    while (result := session.step()) is not None:
        tokens.extend(getattr(result, "tokens", ()))
    session.finish()
    return tokens


@pytest.mark.parametrize(("drafting", "family"), thinned([True, False], ["qwen3_5", "qwen3", "muse_glimmer"]))
def test_a_restored_session_goes_on_as_if_nothing_had_happened(family: str, drafting: bool) -> None:
    target = make_tiny_target(family)
    drafter = make_tiny_drafter()

    def new_session() -> Session:
        return DFlash2Session(target, drafter) if drafting else PlainSession(target)

    session = new_session()
    first = reply(session, PROMPT)
    snapshot = session.snapshot()
    second = [*PROMPT, *first, 3, 4, 8]
    expected = reply(session, second)
    reply(session, [*second, *expected, 60, 61])  # moves on, and must not disturb the snapshot

    for _ in range(2):  # a snapshot serves more than once
        other = new_session()
        other.restore(snapshot)
        assert reply(other, second) == expected
        assert other.cached_tokens == len(PROMPT) + len(first) - 1
    assert reply(new_session(), second) == expected


def test_a_running_session_gives_no_snapshot_and_takes_no_second_reply() -> None:
    engine = bootstrap_pair()
    session = d2.new_session(engine)
    events = d2.stream_generate(engine, "import os\n", d2.GenerationConfig(max_tokens=300), session=session)
    next(events)
    with pytest.raises(RuntimeError, match="running"):
        session.snapshot()
    with pytest.raises(d2.ConfigError, match="running"):
        d2.generate(engine, "import sys\n", d2.GenerationConfig(max_tokens=5), session=session)
    events.close()
    assert d2.generate(engine, "import sys\n", d2.GenerationConfig(max_tokens=5), session=session).token_ids
