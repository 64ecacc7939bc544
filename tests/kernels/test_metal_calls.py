"""Where kernels' texts are found, and how their calls are put together, on any machine."""

from __future__ import annotations

import importlib
import sys

import mlx.core as mx
import pytest

from dflash2_mlx.kernels import qmm_calls
from dflash2_mlx.kernels.accept import accept_call
from dflash2_mlx.kernels.conv_add_norm import conv_add_norm_call
from dflash2_mlx.kernels.dynamic_conv import dynamic_conv_call
from dflash2_mlx.kernels.few_row_attention import few_row_attention_call, few_row_merge_call
from dflash2_mlx.kernels.gated_delta_verify import gated_delta_verify_call
from dflash2_mlx.kernels.norm_rope import norm_rope_call
from dflash2_mlx.kernels.select_walk import select_walk_call
from dflash2_mlx.kernels.source import CHECKOUT, PACKAGED, kernel_source
from dflash2_mlx.kernels.top_candidates import top_candidates_call

CALLS = [
    dynamic_conv_call((2, 8, 5120), mx.bfloat16, 2, 16, 0),
    conv_add_norm_call((2, 8, 5120), mx.bfloat16, 2, 16),
    top_candidates_call((7, 248320), 16, 248077),
    select_walk_call((1, 7, 31, 16), 256, True),
    norm_rope_call((2, 8, 48, 128), mx.bfloat16, 40),
    qmm_calls.quantized_tile((16, 5120, 17408), mx.bfloat16, 64, 4, False),
    qmm_calls.quantized_matrix((8, 5120, 17408), mx.bfloat16, 64, 4, True),
    qmm_calls.quantized_tensor((8, 5120, 17408), mx.bfloat16, 64, 8, False),
    few_row_attention_call((2, 24, 8, 256), (2, 4, 5000, 256), mx.bfloat16, window=None, sink=0, causal=True),
    few_row_merge_call(20, (2, 24, 8, 256), mx.bfloat16),
    gated_delta_verify_call((2, 48, 128, 128), (2, 8, 16, 128), mx.bfloat16),
    accept_call((2, 8, 31, 20), 16, 248320),
]


def write(folder, name: str, text: str):
    folder.mkdir()
    (folder / f"{name}.metal").write_text(text)
    return folder


def test_the_packaged_text_comes_before_the_checkouts(tmp_path):
    packaged, checkout = (write(tmp_path / name, "one", f"{name};") for name in ("packaged", "checkout"))
    assert kernel_source("one", (packaged, checkout)) == "packaged;"
    assert kernel_source("one", (tmp_path, checkout)) == "checkout;"
    assert (PACKAGED.name, CHECKOUT.name) == ("_metal", "metal")


def test_a_missing_text_is_one_error_that_names_both_places(tmp_path):
    places = (tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileNotFoundError, match=r"'one': no one\.metal in .*a and .*b$"):
        kernel_source("one", places)


def test_comments_go_and_lines_stay_where_they_are(tmp_path):
    folder = write(tmp_path / "a", "one", "// head\n\nint a = 4 / 2;  // why\n  // alone\nb;\n")
    assert kernel_source("one", (folder,)) == "\n\nint a = 4 / 2;\n\nb;\n"


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_calls_are_complete(call):
    source = kernel_source(call.name)
    for name in (*call.inputs, *call.outputs, *(name for name, _ in call.template)):
        assert name in source.replace(",", " "), name
    assert len(call.outputs) == len(call.output_shapes) == len(call.output_dtypes)
    threads = call.threadgroup[0] * call.threadgroup[1] * call.threadgroup[2]
    assert 32 <= threads <= 512  # Metal may allow no more where a kernel needs many registers
    assert all(isinstance(value, bool | int | mx.Dtype) for _, value in call.template)
    assert all(value >= 0 for _, value in call.template if isinstance(value, int))


def test_grids_count_threads():
    assert CALLS[0].grid == (1280, 8, 2)
    assert CALLS[1].grid == (256, 8, 2)
    assert CALLS[2].grid == (256 * 31, 7, 1)
    assert CALLS[3].grid == (512, 1, 1)
    assert CALLS[4].grid == (32 * 40, 8, 2)
    assert (CALLS[5].grid, CALLS[5].threadgroup) == ((32 * 4352, 2, 1), (64, 2, 1))
    assert (CALLS[6].grid, CALLS[6].threadgroup) == ((256 * 2176, 1, 1), (256, 1, 1))
    assert (CALLS[7].grid, CALLS[7].threadgroup) == ((256 * 544, 1, 1), (256, 1, 1))
    assert CALLS[8].grid == (256, 4, 2 * 20)  # 48 rows of each K/V head in 8 SIMD-groups; parts of 256 keys
    assert CALLS[9].grid == (32, 2 * 24 * 8, 1)
    assert CALLS[10].grid == (32, 32, 2 * 48)
    assert CALLS[11].grid == (32 * 8, 2, 1)


def test_lengths_that_change_from_call_to_call_are_no_template_values():
    # Metal compiles once for each set of template values.
    for rows in (1, 2, 16):
        assert dynamic_conv_call((1, rows, 5120), mx.bfloat16, 2, 16, 0).template == CALLS[0].template
        assert conv_add_norm_call((1, rows, 5120), mx.bfloat16, 2, 16).template == CALLS[1].template
        assert top_candidates_call((rows, 248320), 16, 248077).template == CALLS[2].template
        assert select_walk_call((1, rows, 31, 16), 256, True).template == CALLS[3].template
        assert norm_rope_call((1, rows, 48, 128), mx.bfloat16, 40).template == CALLS[4].template
        assert (
            gated_delta_verify_call((1, 48, 128, 128), (1, rows, 16, 128), mx.bfloat16).template == CALLS[10].template
        )
        assert accept_call((1, rows, 31, 20), 16, 248320).template == CALLS[11].template
    for capacity in (130, 3000, 10**6):
        assert attention(8, capacity) == CALLS[8].template
        assert few_row_merge_call(7, (1, 24, 3, 256), mx.bfloat16).template == CALLS[9].template
    # Rows count by powers of two: eight SIMD-groups serve 6 to 10 rows of six query heads.
    assert len({attention(rows, 3000) for rows in range(2, 17)}) == 3


def attention(rows: int, capacity: int) -> tuple:
    """Template of the call for a 27B model."""
    shapes = (1, 24, rows, 256), (1, 4, capacity, 256)
    return few_row_attention_call(*shapes, mx.bfloat16, window=None, sink=0, causal=True).template


def test_nothing_is_made_at_import(monkeypatch):
    monkeypatch.setattr(mx.fast, "metal_kernel", None)
    importlib.reload(sys.modules["dflash2_mlx.kernels.call"])


def test_a_header_is_handed_over_where_there_is_one():
    made: dict[str, object] = {}
    for call, header in ((CALLS[0], None), (CALLS[7], "#include <MetalPerformancePrimitives/")):
        made.clear()
        call.make(lambda **arguments: made.update(arguments))
        assert ("header" in made) == (header is not None) and str(made.get("header", "")).startswith(header or "")


def test_kernels_are_made_under_the_projects_own_name():
    made = {}
    CALLS[0].make(lambda **arguments: made.update(arguments))
    assert made["name"] == "dflash2_dynamic_conv"
    assert made["input_names"] == ["x", "base_kernel", "delta"] and made["output_names"] == ["out"]
    assert made["source"] == kernel_source("dynamic_conv")
