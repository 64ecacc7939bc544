"""Faults planted into a sample kernel: each must be reported, by the tool that can see it.

The emulator is only worth something while these are red; a change to it that hides one of them fails here.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from .address_spaces import check
from .build import Builder, KernelError, why_not
from .emulator import Emulator, Kernel

# Each element becomes the next one of its group of 64 plus the sum of the group.
SAMPLE = """
threadgroup float held[64];
threadgroup float total;
uint i = thread_index_in_threadgroup;
uint lane = thread_index_in_simdgroup;
uint at = thread_position_in_grid.x;
held[i] = float(x[at]);
threadgroup_barrier(mem_flags::mem_threadgroup);
float next = held[(i + 1) % 64];
if (simdgroup_index_in_threadgroup == 0) {
  float sum = simd_sum(held[lane] + held[lane + 32]);
  if (lane == 0) { total = sum; }
}
threadgroup_barrier(mem_flags::mem_threadgroup);
y[at] = T(next + total);
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
GROUPS = 2
X = mx.arange(64 * GROUPS).astype(mx.bfloat16)
WANT = np.concatenate([np.roll(part, -1) + part.sum() for part in np.split(np.arange(64.0 * GROUPS), GROUPS)])
LAUNCH = {
    "output_shapes": [(64 * GROUPS,)],
    "output_dtypes": [mx.bfloat16],
    "grid": (64 * GROUPS, 1, 1),
    "threadgroup": (64, 1, 1),
    "template": [("T", mx.bfloat16)],
}


def kernel(cache, body: str, sanitizer: str = "", seed: int = 1) -> Kernel:
    return Emulator(Builder(cache, sanitizer), seed).metal_kernel("sample", ["x"], ["y"], body)


def run(cache, body: str, sanitizer: str = "", seed: int = 1) -> np.ndarray:
    reason = why_not(sanitizer)
    if reason is not None:
        pytest.skip(reason)
    (y,) = kernel(cache, body, sanitizer, seed)(inputs=[X], **LAUNCH)
    return np.array(y.astype(mx.float32))


def replaced(old: str, new: str, *, number: int = 1) -> str:
    """The sample with the `number`-th `old` replaced."""
    parts = SAMPLE.split(old)
    assert len(parts) > number, f"{old} is not in the sample {number} time(s)"
    return old.join(parts[:number]) + new + old.join(parts[number:])


@pytest.mark.parametrize("sanitizer", ["", "address", "thread"])
def test_the_sample_is_right(msl_cache, sanitizer):
    want = np.array(mx.array(WANT.astype(np.float32)).astype(mx.bfloat16).astype(mx.float32))
    for seed in range(3):
        np.testing.assert_array_equal(run(msl_cache, SAMPLE, sanitizer, seed), want)
    check(kernel(msl_cache, SAMPLE).generated([X], **LAUNCH), LAUNCH["template"])


WRONG = {
    "first barrier missing": replaced(BARRIER, ""),
    "second barrier missing": replaced(BARRIER, "", number=2),
    "threadgroup variable not set": replaced("{ total = sum; }", "{ next += sum; }"),
    "half of the output not written": replaced("y[at] =", "if (i < 32) y[at] ="),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_result(msl_cache, fault):
    results = [run(msl_cache, WRONG[fault], seed=seed) for seed in range(4)]
    assert any(not np.allclose(result, WANT, rtol=0.01) for result in results)


STOPPED = {
    "barrier for one SIMD-group only": (
        replaced("if (lane == 0) { total = sum; }", f"if (lane == 0) {{ total = sum; }} {BARRIER}"),
        "line",
    ),
    "barrier after some have returned": (
        replaced(BARRIER, f"if (i > 40) {{ return; }} {BARRIER}", number=2),
        r"not reached by every thread.*returned",
    ),
    "two barriers for one": (
        replaced(BARRIER, f"if (i < 32) {{ {BARRIER} }} else {{\n {BARRIER} }}", number=2),
        "different barriers",
    ),
    "SIMD operation for some lanes only": (
        replaced("float sum = simd_sum(", "float sum = lane > 30 ? 0.0f : simd_sum("),
        "threads wait for each other",
    ),
    "different SIMD operations": (
        replaced(
            "float sum = ", "if (lane < 8) { next = simd_max(next); } else { next = simd_min(next); } float sum = "
        ),
        "different SIMD operations",
    ),
    "too much threadgroup memory": (
        replaced("float next =", "\nthreadgroup float more[8192];\nfloat next = more[i] +"),
        "more than 32768 bytes",
    ),
}


@pytest.mark.parametrize("fault", STOPPED)
def test_a_stopped_run(msl_cache, fault):
    body, message = STOPPED[fault]
    with pytest.raises(KernelError, match=rf"(?s)MSL: threadgroup \(\d, 0, 0\): .*{message}"):
        run(msl_cache, body)


def test_a_crash_is_an_error_like_others(msl_cache):
    with pytest.raises(KernelError, match=r"exit status -11"):
        run(msl_cache, replaced("x[at]", "x[at + 4000000000u]"))


ADDRESS = {
    "threadgroup array one short": (replaced("held[64]", "held[63]"), "out of bounds for type"),
    "input read past its end": (replaced("float(x[at])", "float(x[at + 1])"), "heap-buffer-overflow"),
    "output written past its end": (replaced("y[at]", "y[at + 1]"), "heap-buffer-overflow"),
    "input read before its start": (replaced("x[at]", "x[int(at) - 1]"), "heap-buffer-overflow"),
    "shift by too much": (replaced("y[at] =", "next += float(1u << (lane + 20));\ny[at] ="), "shift exponent"),
    "index outside a local array": (
        replaced("float next = held[(i + 1) % 64];", "float four[4] = {held[i]}; float next = four[i % 5];"),
        "out of bounds for type|stack-buffer-overflow",
    ),
}


@pytest.mark.parametrize("fault", ADDRESS)
def test_what_the_address_sanitizer_reports(msl_cache, fault):
    body, message = ADDRESS[fault]
    with pytest.raises(KernelError, match=message):
        run(msl_cache, body, "address")


RACES = {
    "first barrier missing": replaced(BARRIER, ""),
    "second barrier missing": replaced(BARRIER, "", number=2),
    "first barrier orders nothing": replaced("mem_flags::mem_threadgroup", "mem_flags::mem_none"),
    "second barrier orders nothing": replaced("mem_flags::mem_threadgroup", "mem_flags::mem_none", number=2),
    "two threads write one element": replaced("y[at]", "y[at & ~1u]"),
    "two threadgroups write one element": replaced("y[at]", "y[i]"),
    "a SIMD-group taken for a barrier": replaced(BARRIER, "simdgroup_barrier(mem_flags::mem_threadgroup);"),
}


@pytest.mark.parametrize("fault", RACES)
def test_what_the_thread_sanitizer_reports(msl_cache, fault):
    # It remembers only the newest accesses to a place, so one order of threads may hide a race.
    reports = []
    for seed in range(3):
        try:
            run(msl_cache, RACES[fault], "thread", seed)
        except KernelError as error:
            reports.append(str(error))
    assert any("data race" in report and "sample.metal:" in report for report in reports)


COMPILED = {
    "unknown function": (replaced("simd_sum(", "simd_total("), "simd_total"),
    "bfloat stored without a conversion": (replaced("T(next + total)", "next + total"), "sample.metal:15"),
    "unknown name": (replaced("next + total", "nxt + total"), "nxt"),
    "local variable without a value": (
        replaced("float next = held[(i + 1) % 64];", "float next;"),
        "is used uninitialized",
    ),
}


@pytest.mark.parametrize("fault", COMPILED)
def test_what_does_not_compile(msl_cache, fault):
    body, message = COMPILED[fault]
    with pytest.raises(KernelError, match=message):
        run(msl_cache, body)


SPACES = {
    "pointer without a space": "float* p = held;",
    "device pointer to threadgroup memory": "device float* p = held;",
    "thread pointer to threadgroup memory": "thread float* p = held;",
    "store to an input": "x[0] = y[0];",
    "pointer that drops const": "device T* p = x;",
    "function of C": "y[at] = T(sinf(next));",
}


@pytest.mark.parametrize("fault", SPACES)
def test_what_clang_reports(msl_cache, fault):
    body = SAMPLE + SPACES[fault] + "\n"
    with pytest.raises(KernelError, match=r"sample\.metal:16: "):
        check(kernel(msl_cache, body).generated([X], **LAUNCH), LAUNCH["template"])


def test_a_device_pointer_fails_for_small_inputs_only(msl_cache):
    made = kernel(msl_cache, SAMPLE + "const device T* p = x;\n")
    check(made.generated([X], **LAUNCH), LAUNCH["template"])
    with pytest.raises(KernelError, match="__constant"):
        check(made.generated([X[:7]], **LAUNCH), LAUNCH["template"])
