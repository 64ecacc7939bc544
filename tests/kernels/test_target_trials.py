"""The races of a pair's verify pass: shapes, keys that decoding looks up, and contenders that do the same work."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels import few_row_attention, gated_delta_verify
from dflash2_mlx.kernels.dispatch import KernelMismatch, dispatcher
from dflash2_mlx.sampling import acceptance
from dflash2_mlx.sampling.config import SamplingConfig
from dflash2_mlx.tuning import target_trials as target_contests
from dflash2_mlx.tuning import trial
from dflash2_mlx.tuning.target_trials import contests
from tests.tiny import make_tiny_drafter, make_tiny_target


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(target_contests, "CONTEXTS", (40, 2200))
    monkeypatch.setattr(trial, "ROTATED_BYTES", 2**15)


@pytest.mark.usefixtures("believing")
def test_a_race_for_every_shape_and_number_of_rows():
    found = contests(make_tiny_target("qwen3_5"), make_tiny_drafter(), [1, 2, 5, 17])
    assert [(contest.kernel, contest.key) for contest in found] == [
        *[
            ("few_row_attention", f"4/2 heads of 32 float32 rows {rows} context {context} 2048")
            for context in ("up to", "beyond")
            for rows in (2, 5)
        ],
        *[("few_row_attention", f"4/2 heads of 16 float32 window 8 rows {rows} context up to 2048") for rows in (2, 5)],
        *[("gated_delta_verify", f"4/2 heads of 16x32 float32 rows {rows}") for rows in (2, 5)],
        *[("accept", f"{rows}x211 top up to 32, 6 candidates") for rows in (2, 5)],
    ]
    assert all(contest.stock == "mlx" and set(contest.chains) == {"mlx", "metal"} for contest in found)


@pytest.mark.usefixtures("believing")
def test_a_sliding_layer_and_a_short_model_have_short_contexts():
    keys = [contest.key for contest in contests(make_tiny_target("llama_sliding"), None, [4])]
    assert keys == [
        "4/2 heads of 32 float32 rows 4 context up to 2048",
        "4/2 heads of 32 float32 rows 4 context beyond 2048",
        "4/2 heads of 32 float32 window 8 rows 4 context up to 2048",
    ]


@pytest.mark.usefixtures("believing")
def test_a_target_in_exact_mode_has_no_choice(monkeypatch):
    target = make_tiny_target("qwen3_5")
    monkeypatch.setattr(target, "exact", True)
    assert contests(target, None, [3]) == []
    found = [contest.key for contest in contests(target, make_tiny_drafter(), [3])]
    assert found == [
        "4/2 heads of 16 float32 window 8 rows 3 context up to 2048",
        "3x211 top up to 32, 6 candidates",
    ]


def test_contenders_do_the_same_work_and_are_checked(metal):
    found = contests(make_tiny_target("qwen3_5"), None, [3])
    assert len(found) == 3
    for contest in found:
        contest.check("mlx")
        contest.check("metal")
        ends = [np.array(contest.chains[name](4)) for name in ("mlx", "metal")]
        np.testing.assert_allclose(*ends, rtol=0, atol=1e-4)
        assert not np.array_equal(np.array(contest.chains["mlx"](3)), ends[0])  # each call has its part


def test_acceptance_is_raced_from_logits_to_tokens(metal):
    (race,) = [c for c in contests(make_tiny_target("qwen3"), make_tiny_drafter(), [1, 3]) if c.kernel == "accept"]
    assert race.stock == "mlx" and race.key == "3x211 top up to 32, 6 candidates"
    race.check("metal")
    counts = [race.chains[name](2).tolist() for name in ("mlx", "metal")]
    assert counts[0] == counts[1] and "accept" in dispatcher()._kernels
    sampling = SamplingConfig(temperature=0.7, top_k=20)
    assert acceptance.wanted(sampling, 3, 211, 6)
    dispatcher().wanted = {**dispatcher().wanted, "accept": "auto"}
    dispatcher().adopt({("accept", race.key): "mlx"})
    assert not acceptance.wanted(sampling, 3, 211, 6) and acceptance.wanted(sampling, 2, 211, 6)


@pytest.mark.parametrize("kernel", ["few_row_attention", "gated_delta_verify"])
def test_wrong_numbers_do_not_race(metal, kernel, monkeypatch):
    run = dispatcher().run
    monkeypatch.setattr(dispatcher(), "run", lambda *a: [array + 1 for array in run(*a)])
    contest = next(c for c in contests(make_tiny_target("qwen3_5"), None, [3]) if c.kernel == kernel)
    contest.check("mlx")
    with pytest.raises(KernelMismatch):
        contest.check("metal")


def test_winners_decide_where_nobody_asked_by_name(metal, monkeypatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "auto")
    dispatcher.cache_clear()
    attention, _, delta = contests(make_tiny_target("qwen3_5"), None, [3])
    queries, keys, state = (1, 4, 3, 32), (1, 2, 50, 32), (1, 4, 16, 32)

    def asked() -> tuple[bool, bool]:
        return (
            few_row_attention.wanted(queries, keys, mx.float32, None),
            gated_delta_verify.wanted(state, (1, 3, 2, 32), mx.float32),
        )

    assert asked() == (True, True)  # MLX has no kernel for heads of 32
    dispatcher().adopt({(attention.kernel, attention.key): "mlx", (delta.kernel, delta.key): "mlx"})
    assert asked() == (False, False)
