"""Which implementation runs: the variable, the self-test, and that one kernel's fault is its own (CK-25)."""

from __future__ import annotations

import pytest

from dflash2_mlx.errors import ConfigError
from dflash2_mlx.kernels._dispatch import KERNELS, Dispatcher, KernelMismatch, parse_choices

WALK = "select_walk"


def factory(*_: object, **__: object) -> object:
    raise AssertionError("no kernel is made here")


def passes() -> None:
    pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("auto", {}),
        ("mlx", dict.fromkeys(KERNELS, "mlx")),
        ("metal", dict.fromkeys(KERNELS, "metal")),
        ("auto,select_walk=mlx", {WALK: "mlx"}),
        (" select_walk = mlx ".replace(" = ", "="), {WALK: "mlx"}),
        (
            "mlx,dynamic_conv=metal,select_walk=auto",
            {**dict.fromkeys(KERNELS, "mlx"), "dynamic_conv": "metal", WALK: "auto"},
        ),
    ],
)
def test_choices(text, expected):
    assert parse_choices(text) == {**dict.fromkeys(KERNELS, "auto"), **expected}


@pytest.mark.parametrize("text", ["fast", "Metal", "walk=mlx", "select_walk=", "=mlx", "mlx;metal", "select_walk=on"])
def test_unknown_choices_are_named(text):
    with pytest.raises(ConfigError) as caught:
        Dispatcher(text, None)
    assert "DFLASH2_KERNELS: got" in str(caught.value) and "expected auto, mlx, metal" in str(caught.value)


def test_without_metal_the_twins_run():
    here = Dispatcher("auto", None)
    assert not any(here.uses_metal(name, passes) for name in KERNELS)
    assert {(state.runs, state.tested, state.reason) for state in here.states()} == {
        ("mlx", False, "MLX has no Metal here")
    }
    assert here.notes() == []


def test_metal_by_name_is_an_error_without_metal():
    here = Dispatcher("select_walk=metal", None)
    assert not here.uses_metal("dynamic_conv", passes)
    with pytest.raises(ConfigError, match="DFLASH2_KERNELS: got metal for select_walk"):
        here.uses_metal(WALK, passes)


def test_twins_by_name_run_although_there_is_metal():
    here = Dispatcher("mlx", factory)
    assert not here.uses_metal(WALK, passes)
    assert {(state.runs, state.reason) for state in here.states()} == {("mlx", None)}


def test_a_kernel_is_tested_once_before_its_first_use():
    here, tested = Dispatcher("auto", factory), []
    for _ in range(3):
        assert here.uses_metal(WALK, lambda: tested.append(WALK))
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

    assert not here.uses_metal(WALK, fails) and not here.uses_metal(WALK, fails)
    assert here.uses_metal("dynamic_conv", passes)
    states = {state.name: state for state in here.states()}
    assert (states[WALK].runs, states["dynamic_conv"].runs) == ("mlx", "metal")
    reason = " ".join(str(fault).split())
    assert states[WALK].reason == reason
    assert here.notes() == [f"kernel select_walk: runs as its MLX twin ({reason})"]


def test_a_fault_of_the_test_itself_is_not_hidden():
    with pytest.raises(TypeError):
        Dispatcher("auto", factory).uses_metal(WALK, lambda: len(3))  # type: ignore[arg-type]
