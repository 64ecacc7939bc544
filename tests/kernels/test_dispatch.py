"""Which implementation runs: the variable, the self-test, and that one kernel's fault is its own (CK-25)."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest

from dflash2_mlx.errors import ConfigError
from dflash2_mlx.kernels.call import KernelCall
from dflash2_mlx.kernels.dispatch import KERNELS, OPT_IN, Dispatcher, KernelMismatch, check_equal, parse_choices

WALK, TENSOR = "select_walk", "qmm_rows_tensor"
ORDINARY = tuple(name for name in KERNELS if name not in OPT_IN)


def factory(*_: object, **__: object) -> object:
    raise AssertionError("no kernel is made here")


def passes() -> None:
    pass


def call(name: str, side: int = 0) -> KernelCall:
    return KernelCall(name, ("x",), ("y",), (("SIDE", side),), (1, 1, 1), (1, 1, 1), ((1,),), (mx.float32,))


INPUTS = (mx.zeros((1,)),)


def uses_metal(here: Dispatcher, name: str, self_test: Callable[[], None] = passes) -> bool:
    return here.wants_metal(name) and here.passes(call(name), INPUTS, self_test)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("auto", {}),
        ("mlx", dict.fromkeys(KERNELS, "mlx")),
        ("metal", dict.fromkeys(ORDINARY, "metal")),
        ("qmm_rows_tensor=auto", {TENSOR: "auto"}),
        ("qmm_rows_tensor=metal,auto", {TENSOR: "metal"}),
        ("auto,select_walk=mlx", {WALK: "mlx"}),
        (" select_walk = mlx ".replace(" = ", "="), {WALK: "mlx"}),
        (
            "mlx,dynamic_conv=metal,select_walk=auto",
            {**dict.fromkeys(KERNELS, "mlx"), "dynamic_conv": "metal", WALK: "auto"},
        ),
    ],
)
def test_choices(text, expected):
    assert parse_choices(text) == {**dict.fromkeys(ORDINARY, "auto"), TENSOR: "mlx", **expected}


def test_a_kernel_that_no_device_has_run_is_off_unless_it_is_named():
    assert sorted(OPT_IN) == [TENSOR]
    for text in ("auto", "metal"):
        here = Dispatcher(text, factory)
        assert not here.wants_metal(TENSOR) and here.wants_metal("qmm_rows")
        (state,) = (state for state in here.states() if state.name == TENSOR)
        assert state.runs == "mlx" and state.reason == "off unless it is named: no device has run it yet"
    assert Dispatcher("auto,qmm_rows_tensor=auto", factory).wants_metal(TENSOR)


@pytest.mark.parametrize("text", ["fast", "Metal", "walk=mlx", "select_walk=", "=mlx", "mlx;metal", "select_walk=on"])
def test_unknown_choices_are_named(text):
    with pytest.raises(ConfigError) as caught:
        Dispatcher(text, None)
    assert "DFLASH2_KERNELS: got" in str(caught.value) and "expected auto, mlx, metal" in str(caught.value)


def test_without_metal_the_twins_run():
    here = Dispatcher("auto", None)
    assert not any(uses_metal(here, name) for name in KERNELS)
    states = [state for state in here.states() if state.name in ORDINARY]
    assert {(state.runs, state.tested, state.reason) for state in states} == {("mlx", False, "MLX has no Metal here")}
    assert here.notes() == []


def test_metal_by_name_is_an_error_without_metal():
    here = Dispatcher("select_walk=metal", None)
    assert not uses_metal(here, "dynamic_conv")
    with pytest.raises(ConfigError, match="DFLASH2_KERNELS: got metal for select_walk"):
        uses_metal(here, WALK)


def test_twins_by_name_run_although_there_is_metal():
    here = Dispatcher("mlx", factory)
    assert not uses_metal(here, WALK)
    assert {(state.runs, state.reason) for state in here.states() if state.name in ORDINARY} == {("mlx", None)}


def test_a_kernel_is_tested_once_before_its_first_use():
    here, tested = Dispatcher("auto", factory), []
    for _ in range(3):
        assert uses_metal(here, WALK, lambda: tested.append(WALK))
    assert tested == [WALK]
    states = {state.name: state for state in here.states()}
    assert states[WALK].tested and not states["dynamic_conv"].tested and states[WALK].runs == "metal"


@pytest.mark.parametrize(
    "fault",
    [KernelMismatch("off by 3"), RuntimeError("no\npipeline"), ValueError("too large a group"), OSError("gone")],
)
@pytest.mark.parametrize("wanted", ["auto", "metal"])
def test_a_kernel_that_fails_is_switched_off_alone(fault, wanted):
    here = Dispatcher(wanted, factory)

    def fails() -> None:
        raise fault

    assert not uses_metal(here, WALK, fails) and not uses_metal(here, WALK, fails)
    assert uses_metal(here, "dynamic_conv")
    states = {state.name: state for state in here.states()}
    assert (states[WALK].runs, states["dynamic_conv"].runs) == ("mlx", "metal")
    reason = " ".join(str(fault).split())
    assert states[WALK].reason == reason
    assert here.notes() == [f"kernel select_walk: runs as its MLX twin ({reason})"]


def test_a_fault_of_the_test_itself_is_not_hidden():
    with pytest.raises(TypeError):
        uses_metal(Dispatcher("auto", factory), WALK, lambda: len(3))  # type: ignore[arg-type]


def test_every_text_that_metal_compiles_is_tested_and_no_text_twice():
    here, tested = Dispatcher("auto", factory), []
    for side, dtype in ((0, mx.float32), (1, mx.float32), (0, mx.bfloat16), (1, mx.float32)):
        inputs = (mx.zeros((3,), dtype=dtype),)
        here.passes(call(WALK, side), inputs, lambda side=side, dtype=dtype: tested.append((side, dtype)))
    assert tested == [(0, mx.float32), (1, mx.float32), (0, mx.bfloat16)]


def test_a_kernel_object_is_made_once():
    made: list[str] = []

    def make(*, name: str, **_: object) -> Callable[..., list[mx.array]]:
        made.append(name)
        return lambda **_: [mx.zeros((1,))]

    here = Dispatcher("auto", make)
    for _ in range(3):
        here.run(call("dynamic_conv"), INPUTS)
    assert made == ["dflash2_dynamic_conv"]


@pytest.mark.parametrize("wrong", [0.2, -0.2, float("nan"), float("inf")])
def test_numbers_beyond_the_tolerance_are_a_mismatch(wrong):
    good = mx.array([1.0, 2.0])
    check_equal(good, good + 0.05, tolerance=0.1, what="x")
    with pytest.raises(KernelMismatch, match="x: off by"):
        check_equal(good, mx.array([1.0, 2.0 + wrong]), tolerance=0.1, what="x")


def test_states_may_be_asked_for_while_kernels_are_tested_and_raced():
    """The server asks from threads of its own; the owner of MLX goes on meanwhile."""
    here = Dispatcher("auto", factory)

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:  # compared with every kernel's name: now something happens elsewhere
            number = len(here._tested)
            here.passes(call(f"another {number}"), INPUTS, passes)
            here.adopt({(f"another {number}", "shape"): "mlx"})
            return str.__eq__(self, other)

    assert here.passes(call(Name(WALK)), INPUTS, passes)
    here.adopt({(Name(WALK), "shape"): "metal"})
    (walk,) = (state for state in here.states() if state.name == WALK)
    assert walk.tested and walk.races == {"shape": "metal"}


def test_graphs_with_a_kernel_that_failed_are_out_of_date():
    here = Dispatcher("auto", factory)
    here.remembered(("shape",), lambda: "metal")
    assert here.passes(call(WALK, side=0), INPUTS, passes) and here.version == 0

    def fails() -> None:
        raise KernelMismatch("off by 3")

    assert not here.passes(call(WALK, side=1), INPUTS, fails)
    assert here.version == 1 and here.remembered(("shape",), lambda: "mlx") == "mlx"
