"""Products of several layers at once are the separate products, and nothing is kept twice without need."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dflash2_mlx.drafters.dflash2.config import DrafterConfig
from dflash2_mlx.drafters.dflash2.decoder import DrafterMLP
from dflash2_mlx.layers.fused import join, run_joined, share
from tests.tiny import drafter_config, make_tiny_drafter

COLUMNS = 64


def layers(*rows: int, bits: int | None = None, seed: int = 0) -> list[nn.Module]:
    made: list[nn.Module] = []
    for number, count in enumerate(rows):
        layer = nn.Linear(COLUMNS, count, bias=False)
        layer.weight = mx.random.normal((count, COLUMNS), key=mx.random.key(seed + number))
        made.append(layer if bits is None else layer.to_quantized(group_size=32, bits=bits))
    return made


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("shape", [(3, COLUMNS), (2, 5, COLUMNS)])
def test_one_product_is_the_separate_products_side_by_side(bits, shape):
    parts, x = layers(32, 8, 24, bits=bits), mx.random.normal(shape, key=mx.random.key(9))
    apart = run_joined(None, parts, x)
    np.testing.assert_array_equal(apart, np.concatenate([np.array(part(x)) for part in parts], axis=-1))
    joined = join(parts)
    np.testing.assert_allclose(run_joined(joined, parts, x), apart, rtol=1e-5, atol=1e-5)
    share(joined, parts)
    np.testing.assert_allclose(run_joined(None, parts, x), apart, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [None, 4])
def test_shared_parts_take_no_memory(bits):
    parts = layers(4096, 2048, 2048, bits=bits)
    mx.eval([part.parameters() for part in parts])
    before = mx.get_active_memory()
    joined = join(parts)
    share(joined, parts)
    # A copy would be 8 MB or more; other tests of this process leave threads that hold a few small arrays.
    assert mx.get_active_memory() - before < 2**16


def test_parts_stored_in_different_ways_stay_apart():
    plain, four, eight = (layers(32, bits=bits)[0] for bits in (None, 4, 8))
    half = layers(32)[0]
    half.weight = half.weight.astype(mx.bfloat16)
    coarse = layers(32)[0].to_quantized(group_size=64, bits=4)
    for other in (four, half):
        assert join([plain, other]) is None
    for other in (eight, coarse):
        assert join([four, other]) is None
    share(None, [plain, four])  # nothing to do


def test_gate_and_up():
    mlp, x = DrafterMLP(COLUMNS, 96), mx.random.normal((4, COLUMNS), key=mx.random.key(3))
    apart = mlp(x)
    want = mlp.down_proj(nn.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    np.testing.assert_array_equal(apart, want)
    mlp.join_weights()
    np.testing.assert_allclose(mlp(x), apart, rtol=1e-5, atol=1e-6)


def test_joining_hides_no_parameter_and_adds_none():
    config = DrafterConfig.from_dict(drafter_config())
    model, joined = make_tiny_drafter(), make_tiny_drafter(compiled=True)
    ours, theirs = (dict(nn.utils.tree_flatten(m.parameters())) for m in (model, joined))
    assert set(ours) == set(theirs) and config.num_layers == 2
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array)


def test_a_drafter_serves_one_target_after_another():
    # The draft pass keeps the tables it was compiled with; another lender needs a pass of its own.
    class Table:
        def __init__(self, seed: int):
            self.rows = mx.random.normal((80, COLUMNS), key=mx.random.key(seed))

        def embed(self, ids: mx.array) -> mx.array:
            return self.rows[ids]

        def head(self, hidden: mx.array) -> mx.array:
            return hidden @ self.rows.T

    compiled, plain, anchor = make_tiny_drafter(compiled=True), make_tiny_drafter(), mx.array([3], dtype=mx.int32)
    replies = {}
    for seed in (1, 2, 1):
        got, want = (model.propose(anchor, model.new_context(), 5, Table(seed)).tokens for model in (compiled, plain))
        np.testing.assert_array_equal(got, want)
        replies[seed] = np.array(got)
    assert (replies[1] != replies[2]).any()
