"""When few_row_attention runs: by rows, sizes, wish, race, and what MLX has of its own."""

from __future__ import annotations

import mlx.core as mx
import pytest

from dflash2_mlx.errors import SettingError
from dflash2_mlx.kernels import dispatch as _dispatch
from dflash2_mlx.kernels.dispatch import dispatcher
from dflash2_mlx.kernels.few_row_attention import Sight, few_row_attention, fused_by_mlx, mask_of, race_key, wanted

LARGE = {"heads": 24, "kv_heads": 4, "dim": 256}  # six query heads for each K/V head


def asked(
    rows=8, heads=24, kv_heads=4, dim=256, capacity=4096, dtype=mx.bfloat16, window=None, *, key=False
) -> bool | str:
    shapes = (1, heads, rows, dim), (1, kv_heads, capacity, dim)
    return (race_key if key else wanted)(*shapes, dtype, window)


@pytest.fixture
def some_metal(monkeypatch):
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (lambda **_: None, False))
    dispatcher.cache_clear()


def test_never_without_metal():
    assert not asked()


@pytest.mark.parametrize(
    ("rows", "share", "dim", "fused"),
    [
        *[(8, 4, dim, True) for dim in (64, 128, 256)],
        *[(8, 5, dim, False) for dim in (64, 128, 256)],
        (2, 16, 128, True), (2, 17, 128, False),
        (4, 1, 80, False), (9, 8, 80, True), (9, 1, 128, True), (9, 1, 256, False),
    ],
)  # fmt: skip
def test_what_mlx_has_a_kernel_for(rows, share, dim, fused):
    assert fused_by_mlx(rows, share, dim) is fused


def test_before_a_race_it_runs_where_mlx_has_no_kernel(some_metal):
    assert asked(rows=6) and asked(rows=16)
    assert not asked(rows=5)  # 5 x 6 query rows
    assert not asked(rows=16, dim=128)


@pytest.mark.parametrize(
    "changes", [{"rows": 1}, {"rows": 17}, {"dim": 320}, {"dtype": mx.float64}, {"capacity": 2**22}]
)
def test_what_it_cannot_do(some_metal, monkeypatch, changes):
    monkeypatch.setenv("DFLASH2_KERNELS", "metal")
    dispatcher.cache_clear()
    assert asked(rows=2) and asked(rows=5)
    assert not asked(**changes)


def test_a_race_decides_for_its_own_shape_alone(some_metal):
    dispatcher().adopt({("few_row_attention", asked(rows=8, key=True)): "mlx"})
    dispatcher().adopt({("few_row_attention", asked(rows=3, key=True)): "metal"})
    assert not asked(rows=8) and asked(rows=3)
    assert not asked(rows=8, capacity=9000) and asked(rows=8, capacity=300)  # a short context is another race
    assert asked(rows=7) and not asked(rows=4)


def test_by_name_a_race_does_not_matter(some_metal, monkeypatch):
    monkeypatch.setenv("DFLASH2_KERNELS", "metal")
    dispatcher.cache_clear()
    dispatcher().adopt({("few_row_attention", asked(rows=8, key=True)): "mlx"})
    assert asked(rows=8)


def test_keys_of_races_tell_shapes_apart():
    keys = {
        asked(**changes, key=True)
        for changes in (
            {}, {"rows": 7}, {"heads": 8}, {"kv_heads": 2}, {"dim": 128}, {"capacity": 100}, {"dtype": mx.float16},
            {"window": 512}, {"window": 1024},
        )
    }  # fmt: skip
    assert len(keys) == 9
    assert asked(key=True) == "24/4 heads of 256 bfloat16 rows 8 context beyond 2048"


def test_exact_attention_never_falls_back(monkeypatch):
    start = mx.array([20], dtype=mx.int32)
    sight = Sight(mask_of(start, 0, 2, 40, causal=True, window=None, sink=0), start, 0, exact=True)
    arrays = [mx.random.normal((1, 1, rows, 16)) for rows in (2, 40, 40)]
    with pytest.raises(SettingError, match="expected 'fast': MLX has no Metal here"):
        few_row_attention(*arrays, sight)
    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (lambda **_: None, False))
    monkeypatch.setenv("DFLASH2_KERNELS", "mlx")
    dispatcher.cache_clear()
    with pytest.raises(SettingError, match=r"few_row_attention does not run \(switched off by DFLASH2_KERNELS\)"):
        few_row_attention(*arrays, sight)
    with pytest.raises(SettingError, match=r"attention of mlx\.core\.float32 over mlx\.core\.float16"):
        few_row_attention(arrays[0], *(array.astype(mx.float16) for array in arrays[1:]), sight)


def test_what_puts_parts_together_is_tested_before_there_are_parts(metal, monkeypatch):
    """In float32, one text serves buffers of one part and of several: the context may grow in the middle of a reply."""
    make, eager = _dispatch.kernel_factory()

    def factory(*, name, **options):
        kernel = make(name=name, **options)
        return (lambda **call: [y + 1 for y in kernel(**call)]) if name == "dflash2_few_row_merge" else kernel

    monkeypatch.setattr(_dispatch, "kernel_factory", lambda: (factory, eager))
    dispatcher.cache_clear()
    start = mx.array([20], dtype=mx.int32)
    sight = Sight(mask_of(start, 0, 2, 40, causal=True, window=None, sink=0), start, 0)
    arrays = [mx.random.normal((1, 1, rows, 16)) for rows in (2, 40, 40)]
    few_row_attention(*arrays, sight)
    (note,) = dispatcher().notes()
    assert note.startswith("kernel few_row_attention: runs as its MLX twin (few_row_attention: off by")
