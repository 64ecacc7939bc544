"""metal/gated_delta_verify.metal, and its twin, against the float64 recurrence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.kernels.accept import KernelCall
from dflash2_mlx.kernels.gated_delta_verify import Rows, gated_delta_twin, gated_delta_verify_call
from tests.reference import gated_delta

F32, BF16 = mx.float32, mx.bfloat16


@dataclass(frozen=True)
class Case:
    """`keep` has one count per sequence; sizes are distinct where they can be."""

    keep: tuple[int, ...]
    rows: int
    old_rows: int
    key_heads: int = 2
    share: int = 2
    value_dim: int = 6
    key_dim: int = 32
    dtype: mx.Dtype = F32

    def side(self, rows: int, seed: int) -> Rows:
        """What one pass reads."""
        rng = np.random.default_rng(seed)
        batch, heads = len(self.keep), self.key_heads * self.share
        q, k = gated_delta.normalize_queries_keys(
            *(rng.normal(size=(batch, rows, self.key_heads, self.key_dim)) for _ in range(2))
        )
        v = rng.normal(size=(batch, rows, heads, self.value_dim))
        g = gated_delta.decay(rng.normal(size=(batch, rows, heads)), rng.normal(size=heads), rng.normal(size=heads))
        beta = gated_delta.write_strength(rng.normal(size=(batch, rows, heads)))
        # Queries are small by their norm: multiplied, so that a wrong sum is seen.
        wide = [mx.array(array.astype(np.float32)) for array in (8 * q, k, v, g, beta)]
        return Rows(*(a if n == 3 else a.astype(self.dtype) for n, a in enumerate(wide)))

    def parts(self) -> tuple[mx.array, Rows, mx.array, Rows]:
        """state, what the previous pass read, keep, what this one reads."""
        rng = np.random.default_rng(5)
        heads = self.key_heads * self.share
        state = mx.array(rng.normal(size=(len(self.keep), heads, self.value_dim, self.key_dim)).astype(np.float32))
        keep = mx.array(self.keep, dtype=mx.int32)
        return state, self.side(self.old_rows, 1), keep, self.side(self.rows, 2)

    def arrays(self) -> list[mx.array]:
        state, old, keep, new = self.parts()
        return [state, old.k, old.v, old.g, old.beta, keep, new.q, new.k, new.v, new.g, new.beta]

    def call(self) -> KernelCall:
        arrays = self.arrays()
        return gated_delta_verify_call(arrays[0].shape, arrays[7].shape, self.dtype)

    def by_reference(self) -> tuple[np.ndarray, np.ndarray]:
        """y [B, L, Hv, Dv] and stored [B, Hv, Dv, Dk]."""
        state, old, _, new = self.parts()
        outputs, states = [], []
        for sequence, kept in enumerate(self.keep):
            memory = wide(state[sequence])
            if kept:
                before = [wide(a[sequence])[:kept] for a in (old.q, old.k, old.v, old.g, old.beta)]
                memory = gated_delta.run(*before, memory)[1][-1]
            after = [wide(a[sequence]) for a in (new.q, new.k, new.v, new.g, new.beta)]
            outputs.append(gated_delta.run(*after, memory)[0])
            states.append(memory)
        return np.stack(outputs), np.stack(states)


def wide(array: mx.array) -> np.ndarray:
    return np.array(array.astype(F32), dtype=np.float64)


def check(got: list[mx.array], case: Case) -> None:
    y, stored = case.by_reference()
    assert got[0].dtype == case.dtype and got[1].dtype == F32
    np.testing.assert_allclose(wide(got[1]), stored, rtol=0, atol=2e-5)
    np.testing.assert_allclose(wide(got[0]), y, rtol=2**-8 if case.dtype == BF16 else 0, atol=3e-5)


CASES = [
    Case((0,), 1, 1),
    Case((3,), 5, 4, key_heads=1, share=1, value_dim=16),
    Case((4,), 8, 4, key_heads=3, share=1, value_dim=5),
    Case((7,), 16, 16, share=4, value_dim=33, key_dim=64),
    Case((16,), 2, 16, key_dim=128, value_dim=8),
    Case((0, 5, 2), 4, 5, share=3),
    Case((1,), 3, 8, key_heads=1, share=8, value_dim=1, key_dim=192),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.keep}of{case.old_rows}then{case.rows}")
def test_equals_the_reference(on_metal, case):
    check(on_metal(case.call(), case.arrays(), seed=case.rows), case)


@pytest.mark.parametrize("case", [CASES[1], CASES[5]], ids=["one", "three"])
def test_the_twin_equals_the_reference(case):
    check(list(gated_delta_twin(*case.parts())), case)


def test_bfloat16_is_rounded_at_the_output_alone(on_metal):
    case = replace(CASES[1], dtype=BF16)
    check(on_metal(case.call(), case.arrays()), case)


@pytest.mark.parametrize("keep", [-1, 9])
def test_a_count_out_of_range_reads_nothing_outside(on_metal, keep):
    case = Case((keep,), 3, 4)
    got = on_metal(case.call(), case.arrays(), sanitizer="address")
    check(got, replace(case, keep=(min(max(keep, 0), 4),)))


def test_rows_do_not_depend_on_those_after_them(on_metal):
    case = Case((2,), 7, 4)
    whole = on_metal(case.call(), case.arrays())
    arrays = case.arrays()
    for rows in (1, 4):
        fewer = [*arrays[:6], *(array[:, :rows] for array in arrays[6:])]
        got = on_metal(gated_delta_verify_call(fewer[0].shape, fewer[7].shape, F32), fewer)
        np.testing.assert_array_equal(wide(got[0]), wide(whole[0])[:, :rows])
        np.testing.assert_array_equal(wide(got[1]), wide(whole[1]))


def test_what_is_stored_now_is_what_the_next_pass_would_have_stored(on_metal):
    """Kept rows give the same bits whether they are applied by this pass or by the next one."""
    case = Case((3,), 3, 3)
    arrays = case.arrays()
    _, stored = on_metal(case.call(), arrays)
    nothing = [stored, *arrays[1:5], mx.array([0], dtype=mx.int32), *arrays[6:]]
    again = on_metal(case.call(), nothing)
    np.testing.assert_array_equal(wide(again[1]), wide(stored))
    np.testing.assert_array_equal(wide(again[0]), wide(on_metal(case.call(), arrays)[0]))


def test_a_compiler_has_no_choice_of_what_to_fuse(on_metal):
    plain, fused = (on_metal(CASES[1].call(), CASES[1].arrays(), fused=fused) for fused in (False, True))
    for mine, other in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(wide(mine), wide(other))


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_rule_of_memory_is_broken(on_metal, sanitizer):
    case = CASES[5]  # rows of the state that do not fill a SIMD-group, several sequences
    check(on_metal(case.call(), case.arrays(), sanitizer=sanitizer), case)


@pytest.mark.parametrize("case", [Case((1,), 2, 2, key_heads=1, share=1, value_dim=1), replace(CASES[3], dtype=BF16)])
def test_address_spaces(on_metal, case):
    on_metal.check_address_spaces(case.call(), case.arrays())


def test_impossible_shapes_are_refused():
    for state, keys in (((1, 3, 4, 32), (1, 2, 2, 32)), ((1, 2, 4, 48), (1, 2, 2, 48))):
        with pytest.raises(ValueError, match="gated_delta_verify: got"):
            gated_delta_verify_call(state, keys, F32)
