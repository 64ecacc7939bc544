"""Memory (CK-22): flat over many rounds, bounded for long prompts, written in place, and given back.

Everything here is measured in bytes that MLX says are in use. Sessions run in this thread, without the owner
thread and its readers, unless replies are the subject.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx.decode.request import RoundResult
from dflash2_mlx.decode.session import DFlash2Session, PlainSession, Request, Session
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.drafters.dflash2.model import DraftModel
from dflash2_mlx.layers.kv_cache import GROWTH, RowBuffers
from dflash2_mlx.sampling.config import SamplingConfig
from tests.engines import settled_bytes, tiny_engine
from tests.pairs import BOOTSTRAP
from tests.runs import PROMPT, lively_target, slow_unless, thinned
from tests.tiny import make_tiny_drafter, save_drafter, save_target

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 8  # of the sliding layers of the tiny targets, and of the tiny drafter unless said otherwise
LONG = [(7 * i + i // 13) % 200 for i in range(4000)]
KB, MB = 1 << 10, 1 << 20


def in_use() -> int:
    gc.collect()
    return mx.get_active_memory()


def drafting(family: str, **changes: Any) -> DFlash2Session:
    """With a random drafter: nearly every round keeps one token, the most rollbacks there can be."""
    return DFlash2Session(lively_target(family), make_tiny_drafter(**changes))


def groups(session: Session) -> list[RowBuffers]:
    """The session's buffer groups that have layers."""
    found = [session.memory.state.full, session.memory.state.sliding]
    if isinstance(session, DFlash2Session):
        found.append(session.memory.context.buffers)
    return [buffers for buffers in found if buffers.num_layers]


def kept_bytes(session: Session) -> int:
    """What a session has to keep: K/V buffers and recurrent states."""
    return sum(array.nbytes for array in session.memory.arrays())


def read_prompt(session: Session, request: Request) -> None:
    """Step until the first token is there and nothing is in flight."""
    session.begin(request)
    while not isinstance(session.step(), RoundResult):
        pass


@pytest.mark.parametrize("family", ["qwen3_5", slow_unless(False, "muse_glimmer")])
def test_flat_over_300_rounds(family: str) -> None:
    """Besides the buffers nothing grows: one round's taps or logits kept alive would add 1.2 MB or more."""
    gc.collect()  # what earlier tests left must not go in the middle of this one
    session = drafting(family)
    sampling = SamplingConfig(temperature=0.9, seed=1, repetition_penalty=1.1)
    read_prompt(session, Request(PROMPT, 10**6, sampling=sampling, width=5, logprobs=1))
    others, rounds = [], 0
    for rounds in range(1, 301):
        session.step()
        if rounds % 20 == 0:
            mx.synchronize()  # what a half-finished round holds depends on when one looks
            others.append(mx.get_active_memory() - kept_bytes(session))
    assert session._generated > 300
    # Growth, not spread: a buffer that was just made longer counts as kept before the device has made it.
    assert max(others) - others[0] < 256 * KB, others
    limit = WINDOW + 2 * 5 + 2 * GROWTH
    for buffers in groups(session):
        if buffers.window is not None:
            assert buffers.capacity <= limit
        else:
            assert buffers.capacity <= len(session.tokens) + 2 * 5 + GROWTH


@pytest.mark.parametrize(
    ("family", "kind"),
    thinned(["qwen3", "qwen3_5", "muse_glimmer"], ["plain", "dflash2", "dflash2, compiled"]),
)
def test_rows_are_written_in_place(family: str, kind: str) -> None:
    """With far too large buffers a single copy would show in the peak; the rest of a round is small beside it.

    Narrow blocks, because attention's own scratch grows with block rows times buffer rows.
    """
    target, width = lively_target(family), 1
    session: Session = PlainSession(target)
    if kind != "plain":
        width = 2
        session = DFlash2Session(target, make_tiny_drafter(compiled=kind.endswith("compiled"), sliding_window=64))
    read_prompt(session, Request(PROMPT, 10**6, width=width))
    besides = in_use() - kept_bytes(session)
    for buffers in groups(session):
        buffers.reserve(session.memory.state.floor, session.memory.state.upper, 8192)
    smallest = min(array.nbytes for buffers in groups(session) for array in buffers.arrays())
    assert smallest > MB
    for _ in range(4):
        session.step()
    mx.reset_peak_memory()
    for _ in range(40):
        session.step()
    # One set of buffers, not two: an old one that somebody still holds would count as well.
    assert mx.get_peak_memory() - besides - kept_bytes(session) < smallest


@pytest.mark.parametrize("family", ["qwen3_5", "muse_glimmer"])
def test_long_prompt_takes_its_rows_and_one_chunk(family: str) -> None:
    chunk = 128
    session = drafting(family, sliding_window=64)
    before = in_use()
    mx.reset_peak_memory()
    read_prompt(session, Request(LONG, 4, width=5, prefill_chunk=chunk))
    kept = kept_bytes(session)
    for buffers in groups(session):
        if buffers.window is not None:
            assert buffers.capacity <= buffers.window + GROWTH
        else:
            assert buffers.capacity <= len(LONG) + GROWTH
    scores = chunk * len(LONG) * 4 * 4  # float32, 4 heads: the largest thing a chunk computes
    assert mx.get_peak_memory() - before < 2 * kept + 3 * scores
    assert mx.get_active_memory() - before < kept + 256 * KB


@pytest.mark.parametrize("chunk", [32, 100])
def test_taps_never_exceed_a_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = drafting("qwen3_5", sliding_window=64)
    target = session.target
    tapped: list[int] = []
    passes: list[int] = []
    real_append, real_forward = DraftModel.append_context, type(target).forward

    def append(self: DraftModel, taps: mx.array, *args: Any) -> None:
        tapped.append(taps.shape[1])
        real_append(self, taps, *args)

    def forward(self: Any, ids: mx.array, *args: Any, **kwargs: Any) -> Any:
        passes.append(ids.shape[1])
        out = real_forward(self, ids, *args, **kwargs)
        assert (out.taps is not None) == bool(kwargs["taps"])
        return out

    monkeypatch.setattr(DraftModel, "append_context", append)
    monkeypatch.setattr(type(target), "forward", forward)
    read_prompt(session, Request(LONG[:1000], 4, width=5, prefill_chunk=chunk))
    assert max(passes) == chunk and sum(passes) == 1000
    assert max(tapped) <= chunk
    assert sum(tapped) == 63, "only rows that the drafter's window can still see are projected"


@pytest.mark.parametrize("kind", [slow_unless(False, "plain"), "dflash2"])
def test_fifty_sessions_leave_nothing(kind: str) -> None:
    engine = tiny_engine("qwen3_5", owner().call(make_tiny_drafter))
    config = d2.GenerationConfig(max_tokens=6, mode=kind, prefill_chunk=16)

    def reply(number: int) -> None:
        d2.generate(engine, [number, *LONG[: 10 + number]], config)

    reply(0)
    base = settled_bytes()
    for number in range(1, 51):
        reply(number)
        assert settled_bytes(base) == base, f"after session {number}"


def test_sessions_that_live_at_once_cost_their_rows_only() -> None:
    engine = tiny_engine("muse_glimmer", owner().call(make_tiny_drafter))
    config = d2.GenerationConfig(max_tokens=6)
    d2.generate(engine, LONG[:200], config)  # whatever is made at first use
    base = settled_bytes()
    sessions = [d2.new_session(engine, config) for _ in range(8)]
    for number, session in enumerate(sessions):
        d2.generate(engine, [number, *LONG[:200]], config, session=session)
    total = sum(kept_bytes(session) for session in sessions)
    # Besides them: what the last round computed for rows that nobody has asked for yet.
    assert settled_bytes() - base < total + len(sessions) * 40 * KB
    del session
    sessions.clear()
    assert settled_bytes(base) == base


def test_a_snapshot_costs_one_copy_and_goes_with_its_holder() -> None:
    session = drafting("qwen3")
    for _ in range(2):  # the second time the prompt's rows are reused
        read_prompt(session, Request([*PROMPT, *LONG[:400]], 40, width=5))
        session.finish()
    before, kept = in_use(), kept_bytes(session)
    snapshot = session.snapshot()
    assert in_use() - before < 4 * KB, "the arrays are shared until someone writes"
    read_prompt(session, Request([*PROMPT, *LONG[:400], 9], 40, width=5))
    while session.step() is not None:
        pass
    session.finish()
    grown = kept_bytes(session) - kept
    assert in_use() - before < grown + kept + 64 * KB
    del snapshot
    assert in_use() - before < grown + 64 * KB


def test_each_weight_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = save_target(tmp_path / "t", "qwen3", tokenizer=BOOTSTRAP / "target")
    drafter = save_drafter(tmp_path / "d")
    read: list[str] = []
    real: Callable[..., Any] = mx.load
    monkeypatch.setattr(mx, "load", lambda file, *args, **more: (read.append(str(file)), real(file, *args, **more))[1])
    d2.load(target, drafter)
    assert sorted(read) == [str(drafter / "model.safetensors"), str(target / "model.safetensors")]
