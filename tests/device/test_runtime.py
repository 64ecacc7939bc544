"""One thread owns MLX: callers may use any thread, and the process may end at any moment.

Whatever can hang or abort a process runs in a child process of its own, with a time limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx.device.runtime import Owner, owner
from tests.pairs import BOOTSTRAP
from tests.runs import slow_unless
from tests.tiny import TARGET_CONFIGS, save_drafter, save_target

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = BOOTSTRAP / "target"
PROMPT = [3, 5, 9, 100, 20, 77]
CONFIG = d2.GenerationConfig(max_tokens=24)
T = TypeVar("T")


def in_thread(function: Callable[[], T], *, timeout: float = 60) -> T:
    """Call in a new thread that ends before this returns; one that hangs is left behind and fails the test."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again below
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    return future.result(timeout=0)


# The owner thread itself.


class Count:
    """A job of `steps` steps that notes the thread and the order."""

    def __init__(self, name: str, steps: int, log: list[tuple[str, int]]):
        self.name, self.left, self.log = name, steps, log
        self.threads: set[int] = set()
        self.waiting = False
        self.done = threading.Event()

    def ready(self) -> bool:
        return not self.waiting

    def step(self) -> bool:
        self.threads.add(threading.get_ident())
        self.log.append((self.name, self.left))
        self.left -= 1
        if self.left == 0:
            self.done.set()
        return self.left > 0


@pytest.fixture
def fresh_owner() -> Any:
    made = Owner()
    yield made
    made.stop()


def test_calls_run_on_the_owner_thread_and_errors_come_back(fresh_owner: Owner) -> None:
    here = threading.get_ident()
    there = fresh_owner.call(threading.get_ident)
    assert there != here
    assert in_thread(lambda: fresh_owner.call(threading.get_ident)) == there
    nested = in_thread(lambda: fresh_owner.call(lambda: fresh_owner.call(threading.get_ident)), timeout=10)
    assert nested == there, "a nested call runs at once"
    with pytest.raises(ZeroDivisionError):
        fresh_owner.call(lambda: 1 // 0)
    assert fresh_owner.call(lambda: 5) == 5


def test_jobs_take_turns(fresh_owner: Owner) -> None:
    log: list[tuple[str, int]] = []
    jobs = [Count(name, 5, log) for name in "ab"]
    fresh_owner.call(lambda: [fresh_owner.submit(job) for job in jobs])
    assert all(job.done.wait(10) for job in jobs)
    assert [name for name, _ in log] == ["a", "b"] * 5


def test_a_job_whose_reader_is_behind_waits_and_goes_on(fresh_owner: Owner) -> None:
    log: list[tuple[str, int]] = []
    slow, other = Count("slow", 2, log), Count("other", 4, log)
    slow.waiting = True
    fresh_owner.call(lambda: [fresh_owner.submit(job) for job in (slow, other)])
    assert other.done.wait(10)
    assert not slow.done.is_set()
    slow.waiting = False
    assert slow.done.wait(10)


def test_a_call_is_served_between_the_steps_of_a_job(fresh_owner: Owner) -> None:
    job = Count("long", 10**9, [])
    fresh_owner.submit(job)
    assert in_thread(lambda: fresh_owner.call(lambda: 7), timeout=10) == 7
    assert job.left > 0


def test_idle_jobs_run_one_by_one_while_nothing_else_is_there(fresh_owner: Owner) -> None:
    log: list[tuple[str, int]] = []
    first, second, busy = Count("first", 3, log), Count("second", 2, log), Count("busy", 4, log)
    fresh_owner.call(
        lambda: [fresh_owner.submit_idle(first), fresh_owner.submit_idle(second), fresh_owner.submit(busy)]
    )
    assert second.done.wait(10)
    assert [name for name, _ in log] == ["busy"] * 4 + ["first"] * 3 + ["second"] * 2


def test_an_idle_job_waits_behind_a_stalled_one_and_calls_come_at_once(fresh_owner: Owner) -> None:
    log: list[tuple[str, int]] = []
    stalled, idle = Count("stalled", 1, log), Count("idle", 10**9, log)
    stalled.waiting = True
    fresh_owner.call(lambda: [fresh_owner.submit(stalled), fresh_owner.submit_idle(idle)])
    time.sleep(0.2)
    assert log == [], "its reader may come back at any moment"
    began = time.monotonic()
    for _ in range(40):
        in_thread(lambda: fresh_owner.call(lambda: None), timeout=10)
    assert time.monotonic() - began < 1.0, "a call does not wait until a stalled job is looked at again"
    stalled.waiting = False
    assert stalled.done.wait(10)
    assert in_thread(lambda: fresh_owner.call(lambda: 7), timeout=10) == 7
    posted = threading.Event()
    fresh_owner.post(posted.set)
    assert posted.wait(10)


def test_quiet_counts_from_the_last_work(fresh_owner: Owner) -> None:
    fresh_owner.call(lambda: None)
    time.sleep(0.15)
    assert fresh_owner.quiet_s > 0.1
    job = Count("job", 10**9, [])
    fresh_owner.submit(job)
    time.sleep(0.05)
    assert fresh_owner.quiet_s == 0.0 or fresh_owner.quiet_s < 0.05


def test_calls_count_as_work_while_an_idle_job_waits_and_tidying_up_does_not(fresh_owner: Owner) -> None:
    idle = Count("idle", 1, [])
    idle.waiting = True
    fresh_owner.submit_idle(idle)
    fresh_owner.call(lambda: None)
    time.sleep(0.3)
    swept = threading.Event()
    fresh_owner.post(swept.set)
    assert swept.wait(10) and fresh_owner.quiet_s >= 0.3
    fresh_owner.call(lambda: time.sleep(0.3))
    assert fresh_owner.quiet_s < 0.3, "a call is work from its beginning to its end"


def test_a_stopped_owner_refuses_instead_of_hanging() -> None:
    made = Owner()
    made.stop()
    with pytest.raises(RuntimeError, match="ended"):
        in_thread(lambda: made.call(lambda: 1), timeout=10)
    made.stop()  # twice does no harm


# Models and threads (CK-17).


def folders(tmp_path: Path, family: str = "qwen3_5") -> tuple[Path, Path]:
    target = save_target(tmp_path / "target", family, tokenizer=TOKENIZER)
    return target, save_drafter(tmp_path / "drafter")


def test_load_in_one_thread_generate_in_another_read_in_a_third(tmp_path: Path) -> None:
    target, drafter = folders(tmp_path)
    here = d2.generate(d2.load(target, drafter), PROMPT, CONFIG).token_ids
    engine = in_thread(lambda: d2.load(target, drafter))
    stream = in_thread(lambda: d2.stream_generate(engine, PROMPT, CONFIG))
    first = in_thread(lambda: next(stream))
    rest = in_thread(lambda: list(stream))
    ids = [token for event in [first, *rest] for token in event.token_ids]
    assert ids == here


def test_sessions_handed_between_threads(tmp_path: Path) -> None:
    engine = d2.load(*folders(tmp_path, "llama"))
    session = in_thread(lambda: d2.new_session(engine))
    first = in_thread(lambda: d2.generate(engine, PROMPT, CONFIG, session=session))
    turn = [*PROMPT, *first.token_ids, 4, 8]
    second = in_thread(lambda: d2.generate(engine, turn, CONFIG, session=session))
    assert second.stats.cached_tokens >= len(PROMPT)
    assert second.token_ids == d2.generate(engine, turn, CONFIG).token_ids


def test_a_prefix_saved_by_one_thread_is_restored_by_another(tmp_path: Path) -> None:
    engine = d2.load(*folders(tmp_path))
    session = d2.new_session(engine)
    first = d2.generate(engine, PROMPT, CONFIG, session=session)
    saved = in_thread(session.snapshot)
    turn = [*PROMPT, *first.token_ids, 4, 8]
    expected = d2.generate(engine, turn, CONFIG, session=session).token_ids
    other = d2.new_session(engine)
    in_thread(lambda: other.restore(saved))
    again = in_thread(lambda: d2.generate(engine, turn, CONFIG, session=other))
    assert again.stats.cached_tokens > len(PROMPT)
    assert again.token_ids == expected


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_arrays_that_are_no_parameters_live_on_the_owner_thread(kind: str, tmp_path: Path) -> None:
    """mlx-lm builds rotary tables lazily and outside the parameters: loaded elsewhere, the first pass would fail."""
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 2048}
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {**TARGET_CONFIGS["llama"], "rope_scaling": scaling}
    target = save_target(tmp_path / "target", "llama", tokenizer=TOKENIZER)
    (target / "config.json").write_text(json.dumps(config))
    assert d2.generate(d2.load(target), PROMPT, CONFIG).finish_reason is not None


def test_many_threads_at_once(tmp_path: Path) -> None:
    engine = d2.load(*folders(tmp_path))
    prompts = [[*PROMPT, number] for number in range(6)]
    alone = [d2.generate(engine, prompt, CONFIG).token_ids for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda prompt: d2.generate(engine, prompt, CONFIG).token_ids, prompts))
    assert together == alone


def test_all_work_is_on_the_owner_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    for name in ("eval", "async_eval"):
        real = getattr(mx, name)
        monkeypatch.setattr(mx, name, lambda *a, _real=real: (threads.add(threading.get_ident()), _real(*a))[1])
    target, drafter = folders(tmp_path)
    threads.clear()  # the folders were written by this thread
    engine = d2.load(target, drafter)
    d2.load_drafter(drafter)
    result = d2.generate(engine, PROMPT, CONFIG)
    d2.compare_runs(engine, PROMPT, CONFIG, result, result)
    assert threads == {owner().call(threading.get_ident)}


# The end of the process.

PREPARE = """
    import sys, threading
    import dflash2_mlx as d2
    engine = d2.load("mini")
    long = d2.GenerationConfig(max_tokens=1500, stop_token_ids=())
"""


def start_child(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PREPARE) + textwrap.dedent(body)],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def end_of(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        pytest.fail(f"the process did not end; it wrote {out!r} and {err!r}")
    return child.returncode, out, err


ENDINGS = {
    "unfinished stream, still referenced": """
        stream = d2.stream_generate(engine, "def f(", long)
        for _ in range(4): next(stream)
    """,
    "unfinished stream in a session": """
        session = d2.new_session(engine)
        stream = d2.stream_generate(engine, "def f(", long, session=session)
        for _ in range(4): next(stream)
    """,
    "stream read by a daemon thread": """
        begun = threading.Event()
        def read():
            for event in d2.stream_generate(engine, "def f(", long):
                begun.set()
        threading.Thread(target=read, daemon=True).start()
        begun.wait()
    """,
    "stream left in a worker that ended": """
        kept = []
        def read():
            kept.append(d2.stream_generate(engine, "def f(", long))
            next(kept[0])
        worker = threading.Thread(target=read)
        worker.start(); worker.join()
    """,
    "sys.exit in the middle of a for loop": """
        for number, event in enumerate(d2.stream_generate(engine, "def f(", long)):
            if number == 4: sys.exit(0)
    """,
    "two streams, one session idle, engine deleted": """
        streams = [d2.stream_generate(engine, "def f(", long) for _ in range(2)]
        for stream in streams: next(stream)
        idle = d2.new_session(engine)
        del engine
    """,
}


@pytest.mark.parametrize("ending", [slow_unless(at % 2 == 0, ending) for at, ending in enumerate(ENDINGS)])
def test_the_process_ends_cleanly(ending: str) -> None:
    code, _, err = end_of(start_child(ENDINGS[ending]))
    assert (code, err) == (0, "")


def test_ctrl_c_ends_a_reply_and_the_process() -> None:
    child = start_child("""
        for number, event in enumerate(d2.stream_generate(engine, "def f(", long)):
            print(number)
    """)
    assert child.stdout is not None
    while child.stdout.readline() != "5\n":
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    code, _, err = end_of(child)
    assert code in (130, -signal.SIGINT)
    assert err.strip().endswith("KeyboardInterrupt")
    assert "terminate" not in err and "Fatal" not in err


def test_ctrl_c_cancels_one_reply_and_the_next_one_works() -> None:
    child = start_child("""
        short = d2.GenerationConfig(max_tokens=16)
        expected = d2.generate(engine, "def f(", short).token_ids
        session = d2.new_session(engine)
        try:
            for number, event in enumerate(d2.stream_generate(engine, "def f(", long, session=session)):
                print(number)
        except KeyboardInterrupt:
            del event
        print("same" if d2.generate(engine, "def f(", short, session=session).token_ids == expected else "differs")
    """)
    assert child.stdout is not None
    while child.stdout.readline() != "5\n":
        assert child.poll() is None
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    code, out, err = end_of(child)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "same"
    assert time.monotonic() - began < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_is_told_so() -> None:
    script = """
import os, warnings
warnings.simplefilter("ignore")
from dflash2_mlx.device.runtime import owner
owner().call(lambda: 1)
child = os.fork()
if child == 0:
    try:
        owner().call(lambda: 1)
    except RuntimeError as error:
        os._exit(7 if "fork" in str(error) else 1)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240, cwd=Path(__file__).parents[2])
