"""What `doctor` is told: facts are facts, and a report is plain JSON."""

from __future__ import annotations

import json
import os
from importlib.metadata import version

import mlx.core as mx
import pytest

import dflash2_mlx as d2
from dflash2_mlx import analysis
from dflash2_mlx.device.runtime import owner
from dflash2_mlx.kernels.dispatch import KERNELS
from tests.engines import tiny_engine
from tests.tiny import make_tiny_drafter


def test_the_machine_is_this_one():
    found = analysis.describe_machine()
    assert found["memory_bytes"] == pytest.approx(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), rel=0.02)
    assert found["backend"] == ("cpu" if mx.default_device() == mx.Device(mx.cpu) else found["backend"])
    assert found["memory_limit_bytes"] == mx.get_memory_limit()
    assert os.uname().sysname in found["system"].replace("macOS", "Darwin")
    json.dumps(found, allow_nan=False)


def test_versions_are_those_installed():
    found = analysis.package_versions()
    assert found["mlx"] == version("mlx") and found["mlx-lm"] == version("mlx-lm")
    assert set(found) >= {"dflash2-mlx", "mlx-metal", "transformers"}


def test_bandwidth_is_a_speed_memory_can_have():
    assert 10**8 < analysis.measure_bandwidth(repeats=1) < 10**13


@pytest.mark.parametrize("drafts", [True, False])
def test_a_pair_report(drafts):
    engine = tiny_engine("qwen3", owner().call(make_tiny_drafter)) if drafts else tiny_engine("qwen3")
    report = analysis.examine_pair(engine, [3, 5, 9], rows=4)
    shown = report.to_dict()
    json.dumps(shown, allow_nan=False)
    assert list(shown["verify_ms"]) == ["1", "2", "3", "4"]
    assert list(shown["draft_ms"]) == (["2", "3", "4"] if drafts else [])
    assert [gain["block_size"] for gain in shown["gains"]] == ([2, 3, 4] if drafts else [])
    if not drafts:
        assert report.best is None and shown["recommended_block_size"] is None
        return
    assert len(shown["acceptance_by_position"]) == engine.block_size - 1
    assert report.best is not None
    speeds = [gain["speedup"] for gain in shown["gains"]]
    assert shown["expected_speedup"] == max(1.0, *speeds)
    assert (shown["recommended_block_size"] is None) == (max(speeds) <= 1.0)


def test_kernel_states_name_every_kernel():
    states = analysis.kernel_states()
    assert [state.name for state in states] == list(KERNELS)
    assert isinstance(states[0], analysis.KernelState) and d2.__version__


def test_without_metal_no_kernel_is_timed():
    if not mx.metal.is_available():
        assert analysis.time_kernels(owner().call(make_tiny_drafter)) == []
