"""Races of the drafter's kernels: one per kernel and shape, right numbers in both lanes, and winners that count."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import pytest

from dflash2_mlx.kernels._dispatch import KERNELS, METAL, MLX, Dispatcher, KernelMismatch, dispatcher, race_key
from dflash2_mlx.kernels.contests import COPIES, codebooks_of, contests, drafter_cases
from tests.runs import lively_target
from tests.tiny import make_tiny_drafter

# Kernels that have no rival but their twin, at the drafter's shapes.
DRAFTERS = ("norm_rope", "dynamic_conv", "conv_add_norm", "top_candidates", "select_walk")


def test_without_metal_there_is_nothing_to_race():
    if dispatcher().factory is not None:
        pytest.skip("there is Metal here")
    assert contests(lively_target("qwen3"), make_tiny_drafter(), [1, 2, 3]) == []


def test_keys_name_shape_and_type():
    assert race_key((8, 48, 128), mx.bfloat16, "heads 40") == "8x48x128 bfloat16 heads 40"
    assert race_key((5,), mx.float32) == "5 float32"


def test_every_kernel_has_a_case_per_width_and_keys_are_its_own():
    drafter = make_tiny_drafter()
    by_width = {
        width: list(drafter_cases(drafter.config, drafter.dtype, width, codebooks_of(drafter))) for width in (2, 4)
    }
    for cases in by_width.values():
        assert {case.name for case in cases} == set(DRAFTERS)
        # Twice: queries and keys of the block, keys of the context; a greedy walk and a sampled one.
        assert Counter(case.name for case in cases) == {
            "norm_rope": 2, "dynamic_conv": 1, "conv_add_norm": 1, "top_candidates": 1, "select_walk": 2,
        }  # fmt: skip
    keys = [(case.name, case.key) for cases in by_width.values() for case in cases]
    assert len(set(keys)) == len(keys)


def test_chains_depend_and_rotate():
    drafter = make_tiny_drafter()
    case = next(drafter_cases(drafter.config, drafter.dtype, 3, codebooks_of(drafter)))
    seen: list[float] = []
    real = case.twin

    def twin(rows: mx.array, norms: mx.array) -> tuple[mx.array, ...]:
        seen.append(norms[0, 0].item())
        return real(rows, norms)

    case.twin = twin
    chain = case.contest().chains[MLX]
    mx.eval(chain(2 * COPIES))
    assert len(seen) == 2 * COPIES and len(set(seen)) == COPIES and seen[:COPIES] == seen[COPIES:]


def test_a_contender_with_other_numbers_is_told():
    drafter = make_tiny_drafter()
    for case in drafter_cases(drafter.config, drafter.dtype, 3, codebooks_of(drafter)):
        case.contest().check(METAL)  # here the kernel is the twin
        real = case.kernel
        case.kernel = lambda *inputs, _real=real: tuple(part + 1 for part in _real(*inputs))
        with pytest.raises(KernelMismatch, match=case.name):
            case.contest().check(METAL)
        case.contest().check(MLX)


def test_a_winner_decides_and_a_wish_by_name_is_stronger():
    def factory(**_: object) -> object:
        raise AssertionError("no kernel is made here")

    here = Dispatcher("auto,norm_rope=metal,select_walk=mlx", factory)
    for name, before, after_twin in (
        ("dynamic_conv", True, False),
        ("norm_rope", True, True),
        ("select_walk", False, False),
    ):
        assert here.chooses_metal(name, "shape") is before
        here.adopt({(name, "shape"): MLX})
        assert here.chooses_metal(name, "shape") is after_twin
        assert here.chooses_metal(name, "another shape") is before, "a race says nothing of other shapes"
        here.adopt({(name, "shape"): METAL})
        assert here.chooses_metal(name, "shape") is before
    assert here.raced("dynamic_conv") == {"shape": METAL} and here.states()[1].races == {"shape": METAL}
    here.forget_winners()
    assert here.raced("dynamic_conv") == {}


def test_races_on_metal_text_and_the_twin_after_it_won(metal: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "auto")  # by name, a kernel would run whatever a race says
    dispatcher.cache_clear()
    target, drafter = lively_target("qwen3"), make_tiny_drafter(vocab_size=211)
    races = contests(target, drafter, [1, 3])
    assert {race.kernel for race in races} == {*DRAFTERS, "few_row_attention"}
    assert all(race.stock == MLX for race in races)
    for race in races:
        if race.kernel not in DRAFTERS:  # run by test_target_contests.py, behind shorter contexts
            continue
        race.check(METAL)
        mx.eval([chain(2) for chain in race.chains.values()])
    made = dispatcher()._kernels
    assert set(made) == set(DRAFTERS)
    # A draft of that width after the twins won everything: no kernel is run any more.
    dispatcher().adopt({(race.kernel, race.key): MLX for race in races})
    made.clear()
    made.update(dict.fromkeys(KERNELS, _refuse))
    anchor, context = mx.array([3], dtype=mx.int32), drafter.new_context()
    assert drafter.propose(anchor, context, 3, target).tokens.shape == (1, 2)
    with pytest.raises(AssertionError, match="ran"):
        mx.eval(drafter.propose(anchor, context, 4, target).tokens)


def _refuse(**_: object) -> list[mx.array]:
    raise AssertionError("a kernel ran")
