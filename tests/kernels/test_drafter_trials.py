"""Races of the drafter's kernels: one per kernel and shape, right numbers in both lanes, and winners that count."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import pytest

from dflash2_mlx.kernels.dispatch import METAL, MLX, Dispatcher, KernelMismatch, dispatcher, race_key
from dflash2_mlx.tuning.drafter_trials import can_win, codebooks_of, contests, drafter_cases, drafter_contests
from dflash2_mlx.tuning.target_trials import acceptances
from dflash2_mlx.tuning.trial import ROTATED_BYTES, Case, chain_of, sets_needed
from tests.runs import lively_target
from tests.tiny import make_tiny_drafter

# The kernels whose only rival is their twin; the target's have races of their own.
DRAFTER = {"norm_rope", "dynamic_conv", "conv_add_norm", "top_candidates", "select_walk"}


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
        assert {case.name for case in cases} == DRAFTER
        # Twice: queries and keys of the block, keys of the context; a greedy walk and a sampled one, as all ids are in
        # one list.
        assert Counter(case.name for case in cases) == {
            "norm_rope": 2, "dynamic_conv": 1, "conv_add_norm": 1, "top_candidates": 1, "select_walk": 2,
        }  # fmt: skip
    keys = [(case.name, case.key) for cases in by_width.values() for case in cases]
    assert len(set(keys)) == len(keys)


def test_sets_take_turns_and_each_call_waits_for_the_one_before():
    seen: list[tuple[float, float]] = []

    def way(x: mx.array, weight: mx.array) -> tuple[mx.array, ...]:
        seen.append((x[0].item(), weight.item()))
        return (mx.full((2, 2), float("nan") if len(seen) == 4 else 1.0),)

    sets = [(mx.array([float(number)]), mx.array(10.0 + number)) for number in range(3)]
    chain = chain_of(way, lambda: sets)
    mx.eval(chain(3))
    assert seen == [(0, 10), (1, 11), (2, 12)], "the numbers of a set are its own, whatever came before"
    seen.clear()
    last = chain_of(lambda x, weight: (x * way(x, weight)[0].max(),), lambda: sets)(5)
    assert mx.isnan(last).all().item(), "what one call returns reaches all later ones"
    with_feed = chain_of(lambda x, weight: (x + weight,), lambda: sets, lambda inputs, last: (last, inputs[1]))
    assert with_feed(4).item() == 0 + 10 + 11 + 12 + 10


def test_sets_are_as_many_as_leave_every_cache():
    assert sets_needed(ROTATED_BYTES) == sets_needed(10 * ROTATED_BYTES) == 1
    assert sets_needed(ROTATED_BYTES // 4) == 4 and sets_needed(ROTATED_BYTES // 4 - 1) == 5
    assert sets_needed(1) == sets_needed(0) == 32


def test_a_contender_with_other_numbers_or_none_of_its_own_is_told(believing: Dispatcher):
    target, drafter = lively_target("qwen3"), make_tiny_drafter(vocab_size=211)
    cases = [
        *drafter_cases(drafter.config, drafter.dtype, 3, codebooks_of(drafter)),
        *acceptances(target, drafter, [3]),
    ]
    assert {case.name for case in cases} == DRAFTER | {"accept"}
    for case in cases:
        case.kernel = case.twin
        case.contest().check(METAL)
        case.kernel = lambda *inputs, _twin=case.twin: tuple(part + 1 for part in _twin(*inputs))
        with pytest.raises(KernelMismatch, match=f"{case.name}: (other numbers|off by)"):
            case.contest().check(METAL)
        case.contest().check(MLX)
        # A kernel that failed its test leaves the work to its twin, which is no race.
        case.kernel = case.twin
        believing._failures[case.name] = "off by 3"
        with pytest.raises(KernelMismatch, match=rf"{case.name}: does not run here \(kernel .*off by 3\)"):
            case.contest().check(METAL)
        believing._failures.clear()


def test_a_race_says_what_its_inputs_take():
    case = Case("norm_rope", "8 float32", lambda key: (mx.zeros((4, 8)), mx.zeros((2,))), None, None, 0.0)
    assert case.contest().bytes == Case.SETS * 4 * (4 * 8 + 2)


def test_walks_are_raced_with_lists_by_blocks_and_with_merged_ones(believing: Dispatcher):
    drafter = make_tiny_drafter(vocab_size=20_000)
    cases = drafter_cases(drafter.config, drafter.dtype, 3, codebooks_of(drafter), (20_480, mx.bfloat16))
    by_name = {(case.name, case.key): case for case in cases}
    k, rank = drafter.config.selector_top_k, drafter.config.selector_rank
    walks = {key for name, key in by_name if name == "select_walk"}
    assert walks == {f"2x{lists}x{k}x{rank} float32 {how}" for lists in (1, 3) for how in ("greedy", "sampled")}
    assert ("top_candidates", f"2x20480 bfloat16 top {k}") in by_name
    gate, values, ids = by_name["select_walk", f"2x3x{k}x{rank} float32 greedy"].inputs()[0]
    assert values.shape == ids.shape == (1, 2, 3, k) and gate.shape == (1, 2, rank)
    assert (values[..., :-1] >= values[..., 1:]).all().item(), "a list is in order"
    assert all(len(set(row)) == 3 * k for row in ids.reshape(2, -1).tolist()) and ids.min().item() >= 0
    assert ids.max().item() < 20_000


def test_what_cannot_win(believing: Dispatcher, monkeypatch: pytest.MonkeyPatch):
    assert can_win("norm_rope", METAL) and can_win("norm_rope", MLX) and can_win("accept", METAL)
    assert can_win("qmm_rows", "stock") and can_win("qmm_rows", "tile") and can_win("qmm_rows", "pad")
    assert not can_win("qmm_rows", METAL) and not can_win("norm_rope", "tile") and not can_win("nobody", MLX)
    assert not can_win("qmm_rows_mma", METAL), "its races are those of qmm_rows"
    assert not can_win("qmm_rows", "matmul2d"), "off unless it is named"
    monkeypatch.setenv("DFLASH2_KERNELS", "auto,norm_rope=mlx,qmm_rows_mma=mlx")
    dispatcher.cache_clear()
    assert not can_win("norm_rope", METAL) and can_win("norm_rope", MLX) and not can_win("qmm_rows", "matrix")


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
    version = here.version
    here.adopt({("dynamic_conv", "shape"): METAL})
    assert here.version == version, "nothing is new, so no graph has to be made anew"
    assert here.forget([("dynamic_conv", "shape"), ("dynamic_conv", "never raced")]) == {
        ("dynamic_conv", "shape"): METAL
    }
    assert here.raced("dynamic_conv") == {} and here.version == version + 1
    assert here.raced("norm_rope") == {"shape": METAL}, "others keep theirs"


def test_races_on_metal_text_and_the_twin_after_it_won(metal: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "auto")  # by name, a kernel would run whatever a race says
    dispatcher.cache_clear()
    target, drafter = lively_target("qwen3"), make_tiny_drafter(vocab_size=211)
    races = drafter_contests(drafter.config, drafter.dtype, [1, 3], codebooks_of(drafter), (211, mx.float32))
    assert {race.kernel for race in races} == DRAFTER and all(race.stock == MLX for race in races)
    for race in races:
        race.check(METAL)
        mx.eval([chain(2) for chain in race.chains.values()])
    made = dispatcher()._kernels
    assert set(made) >= DRAFTER
    # A draft of that width after the twins won everything: none of these kernels is run any more.
    dispatcher().adopt({(race.kernel, race.key): MLX for race in races})
    made.update(dict.fromkeys(DRAFTER, _refuse))
    anchor, context = mx.array([3], dtype=mx.int32), drafter.new_context()
    assert drafter.propose(anchor, context, 3, target).tokens.shape == (1, 2)
    with pytest.raises(AssertionError, match="ran"):
        mx.eval(drafter.propose(anchor, context, 4, target).tokens)


def _refuse(**_: object) -> list[mx.array]:
    raise AssertionError("a kernel ran")
