"""States whose kept rows wait for the next pass (`gated_delta_verify`) remember what settled ones do, bit for bit.

The twin runs here; that the kernel gives its numbers is for tests/kernels to show.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.decode.session import Request
from dflash2_mlx.layers import gated_delta
from dflash2_mlx.layers.gated_delta import GatedDeltaState, UnsettledState
from tests import runs
from tests.decode import test_session_snapshot, test_session_state, test_session_turns
from tests.decode.test_session_state import BLOCK, advance, drafting
from tests.runs import PROMPT, lively_reply, lively_target
from tests.scripted import ramp


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of the passes that were run in this way."""
    passes: list[int] = []

    def wanted(state: object, keys: tuple[int, ...], dtype: object) -> bool:
        few = 2 <= keys[1] <= 16
        passes.extend([keys[1]] * few)
        return few

    monkeypatch.setattr(gated_delta, "verify_wanted", wanted)
    monkeypatch.setattr(runs, "reader", runs.Reader)  # what a state is compared with is read in one long pass
    yield passes
    assert passes, "no pass was run in this way"


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("accepts", [ramp(BLOCK - 1), [3, 0, 1]], ids=["ramp", "some"])
def test_state_after_every_round(family, accepts):
    test_session_state.test_state_after_every_round(family, "f32", accepts, BLOCK)


@pytest.mark.parametrize("results", [1, 3])
@pytest.mark.parametrize("accepts", test_session_state.SCRIPTS)
def test_cancel_takes_back_the_round_in_flight(accepts, results):
    test_session_state.test_cancel_takes_back_the_round_in_flight("qwen3_5", accepts, results)


@pytest.mark.parametrize("keep", [1, 3, BLOCK])
def test_a_stop_string_cuts_inside_a_block(keep):
    test_session_state.test_a_stop_string_cuts_inside_a_block("qwen3_5", keep)


def test_the_prompt_read_by_few_rows():
    test_session_state.test_cancel_while_the_prompt_is_read("qwen3_5")


def test_while_rounds_run_nothing_is_settled_by_itself():
    """One read and one write of the state: the kept rows are applied by the next pass alone."""
    session = drafting("qwen3_5", ramp(BLOCK - 1))
    advance(session, Request(PROMPT, 64, width=BLOCK), 4)
    for state in session.memory.state.recurrent:
        assert isinstance(state, UnsettledState)
        assert "recurrent" not in vars(state)
    for record in session.memory.state.passes:
        assert all(isinstance(tape.before, GatedDeltaState) for tape in record.tapes)
        # A part of wider rows would be copied by every kernel that reads it: by this pass's, and by the next one's.
        for tape in record.tapes:
            for array in tape.rows.inputs:
                assert np.array(array, copy=False).flags.c_contiguous


def test_single_rows_and_batches_settle_it():
    target, text = lively_target("qwen3_5"), [*PROMPT, *lively_reply("qwen3_5")]
    state = target.new_state(2)
    for rows, keep in ((20, 20), (5, mx.array([2, 4])), (3, mx.array([3, 0])), (1, 1), (4, mx.array([0, 1]))):
        ids = mx.array([text[start : start + rows] for start in state.length.tolist()], dtype=mx.int32)
        target.forward(ids, state)
        target.commit(state, keep)
    assert state.length.tolist() == [26, 26]
    fresh = target.new_state(2)
    target.forward(mx.array([text[:26]] * 2, dtype=mx.int32), fresh)
    target.commit(fresh, 26)
    for mine, other in zip(state.recurrent, fresh.recurrent, strict=True):
        np.testing.assert_allclose(np.array(mine.recurrent), np.array(other.recurrent), rtol=0, atol=1e-5)
        np.testing.assert_allclose(np.array(mine.conv), np.array(other.conv), rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["stop", "cut"])
def test_a_second_turn_equals_a_cold_run(how):
    test_session_turns.test_a_second_turn_equals_a_cold_run("qwen3_5", how)


def test_turns_of_changing_width():
    test_session_turns.test_four_turns_of_changing_width("qwen3_5")


def test_a_restored_session_goes_on():
    test_session_snapshot.test_a_restored_session_goes_on_as_if_nothing_had_happened("qwen3_5", True)
