"""The kernels' texts are free of the traps `lint` knows, and `lint` does find them."""

from __future__ import annotations

import pytest

from dflash2_mlx.kernels.source import CHECKOUT

from .lint import problems

KERNELS = sorted(CHECKOUT.glob("*.metal"))
# Tensor operations cannot be written without these; the kernel is off unless it is asked for.
ALLOWED = {"qmm_rows_tensor": ["auto: not for kernels"]}
GOOD = """// Template: T. Grid: one thread for each element. Called by nobody. Twin: none.
uint i = thread_position_in_grid.x;
y[i] = T(2.0f * float(x[i]));
"""


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_are_free_of_traps(path):
    assert problems(path.read_text(encoding="utf-8")) == ALLOWED.get(path.stem, [])


def test_there_are_kernels():
    assert {path.stem for path in KERNELS} >= {"dynamic_conv", "conv_add_norm", "top_candidates", "select_walk"}


def test_a_good_text():
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Twin: none", "Twin: none, naïve", "not pure ASCII"),
        ("Grid", "Size", "does not say 'Grid:'"),
        ("2.0f", "double(2.0f)", "double: not for kernels"),
        ("2.0f", "2.0", "2.0: a literal without f"),
        ("2.0f", "1e-6", "1e-6: a literal without f"),
        ("uint i", "uint length", "variable length"),
        ("uint i", "float step[4]; uint i", "variable step"),
        ("thread_position_in_grid.x", "0", "no attribute in the body"),
        ("y[i]", "if constexpr (true) y[i]", "if constexpr"),
        ("uint i", "#define K 4\nuint i", "a preprocessor line"),
        ("uint i", "\tuint i", "a tab"),
        ("uint i", "/* index */ uint i", "a /* comment"),
        ("uint i", "static uint n; uint i", "static: not for kernels"),
    ],
)
def test_traps_are_found(old, new, expected):
    found = problems(GOOD.replace(old, new, 1))
    assert len(found) == 1 and expected in found[0]
