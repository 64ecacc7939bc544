"""What a server offers, by which names, and what the settings make of it; nothing is loaded here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash2_app.errors import AppError, UsageError
from dflash2_app.settings.files import SettingsError
from dflash2_app.web.serving.catalogue import Catalogue, Wanted
from dflash2_app.web.serving.naming import Names, shown_name
from dflash2_app.web.serving.source import Card, LoadedSource

from .machine import ON, Machine, machine
from .models import ReadySource, mini_source, tiny_served

__all__ = ["machine"]


def names(catalogue: Catalogue) -> list[str]:
    return [source.name for source in catalogue.offered.sources]


def value(catalogue: Catalogue, at: int, key: str) -> tuple[Any, str]:
    shown = catalogue.offered.sources[at].card.settings[key]
    return shown["value"], shown["origin"]


def test_an_empty_machine_has_the_embedded_pair(machine: Machine) -> None:
    catalogue = machine.catalogue()
    assert names(catalogue) == ["mini"] and catalogue.offered.left_out == {}
    assert catalogue.offered.sources[0].card.dflash_requested is True
    assert [value(catalogue, 0, key) for key in ("temperature", "top_p", "max_tokens")] == [
        (1.0, "default"), (0.95, "default"), (32768, "default"),
    ]  # fmt: skip


def test_everything_on_the_machine_the_default_first(machine: Machine) -> None:
    for name in ("o/A", "o/B", "C"):
        machine.model(name)
    machine.drafter("o/D")
    machine.model("E", model_type="unheard_of")
    machine.configure(B={"is_default": True}, C={"is_favorite": True}, gone__Model={}, elsewhere={})
    catalogue = machine.catalogue()
    assert names(catalogue) == ["B", "C", "A", "mini"]
    left = catalogue.offered.left_out
    assert set(left) == {"D", "E", "gone__Model", "elsewhere"}
    assert "it is a drafter" in left["D"] and "unheard_of" in left["E"] and "elsewhere" in left["elsewhere"]


def test_without_a_default_the_embedded_pair_is_first(machine: Machine) -> None:
    machine.model("o/A")
    assert names(machine.catalogue()) == ["mini", "A"]
    machine.configure(nowhere={"is_default": True, "dflash_enabled": False})
    catalogue = machine.catalogue()
    assert names(catalogue) == ["mini", "A"]
    assert catalogue.offered.notes[-1] == ("the default model nowhere cannot be offered: mini is the default instead")


def test_a_record_may_lead_to_another_folder(machine: Machine, tmp_path: Path) -> None:
    folder = machine.model("o/A").rename(tmp_path / "A")
    machine.configure(A={"top_k": 3})
    machine._write("dflash2_extras.json", {"version": 1, "models": {"A": {"source": str(folder)}}})
    catalogue = machine.catalogue()
    assert names(catalogue) == ["mini", "A"] and catalogue.offered.sources[1].setup.target == str(folder)


def test_of_two_models_of_one_name_the_first_counts(machine: Machine) -> None:
    for name in ("a/Same", "b/Same", "b/mini"):
        machine.model(name)
    catalogue = machine.catalogue()
    assert names(catalogue) == ["mini", "Same"]
    assert Path(catalogue.offered.sources[1].setup.target).parent.name == "a"
    assert catalogue.offered.left_out["mini"] == "another model goes by this name"
    assert any("b/Same" in note for note in catalogue.offered.notes)


def test_exposed_profiles_are_models_of_their_own(machine: Machine) -> None:
    machine.model("o/A")
    drafter = str(machine.drafter("D"))
    machine.configure(A={"model_alias": "Big", "temperature": 0.5, "top_k": 4, **ON, "dflash_draft_model": drafter})
    machine.profile("A", "hot", {"temperature": 0.9})
    machine.profile("A", "wide", {"dflash_draft_window_size": 6}, api_name="w")
    machine.profile("A", "other width", {"dflash_block_size": 3, "dflash_max_ctx": 9})
    machine.profile("A", "private", {"temperature": 0.1}, expose_as_model=False)
    catalogue = machine.catalogue()
    assert names(catalogue) == ["mini", "A", "A:hot", "A:w", "A:other width"]
    base, hot, wide, narrow = catalogue.offered.sources[1:]
    assert [shown_name(source) for source in (base, hot, wide)] == ["Big", "Big:hot", "Big:w"]
    assert (hot.card.base, hot.card.profile, wide.card.profile) == ("A", "hot", "wide")
    assert value(catalogue, 2, "temperature") == (0.9, "profile") and value(catalogue, 2, "top_k") == (4, "model")
    assert base.key == hot.key == narrow.key != wide.key, "only what has to be loaded makes another engine"


def test_what_the_command_line_names_is_all_there_is(machine: Machine) -> None:
    folder = machine.model("o/A")
    machine.model("B")
    drafter = str(machine.drafter("D"))
    machine.configure(A={"temperature": 0.5, "dflash_enabled": False, "model_alias": "Big"})
    machine.profile("A", "hot", {"temperature": 0.9})
    wanted = [Wanted("big", "big", {"dflash_enabled": True, "dflash_draft_model": drafter}), Wanted("mini", "mini")]
    catalogue = machine.catalogue(wanted=wanted, draft_bits=4, given={"target_dtype": "float32"})
    assert names(catalogue) == ["big", "big:hot", "mini"]
    setup = catalogue.offered.sources[0].setup
    assert (setup.target, setup.plan.drafter, setup.plan.draft_bits) == (str(folder), drafter, 4)
    assert setup.plan.strict and setup.plan.target_dtype == "float32"
    assert value(catalogue, 0, "temperature") == (0.5, "model")
    assert value(catalogue, 0, "dflash_draft_model") == (drafter, "command line")
    assert value(catalogue, 1, "temperature") == (0.9, "profile")


def test_the_environment_stands_between(machine: Machine) -> None:
    machine.model("A")
    machine.configure(A={"top_k": 3, "min_p": 0.5})
    catalogue = machine.catalogue(environment={"DFLASH2_TOP_K": "5"})
    assert value(catalogue, 1, "top_k") == (5, "environment") and value(catalogue, 1, "min_p") == (0.5, "model")
    with pytest.raises(UsageError, match="DFLASH2_TOP_K: got 'many'"):
        machine.catalogue(environment={"DFLASH2_TOP_K": "many"})


def test_what_is_wanted_has_to_work(machine: Machine) -> None:
    machine.model("A")
    machine.configure(A={"temperature": -1})
    with pytest.raises(SettingsError, match=r"A: temperature \(model\): got -1"):
        machine.catalogue(wanted=[Wanted("A", "A")])
    with pytest.raises(UsageError, match="--draft-bits: got 4, expected a model with a drafter"):
        machine.catalogue(wanted=[Wanted("o/t", "o/t")], draft_bits=4)


def test_settings_that_cannot_be_used_are_one_models_problem(machine: Machine) -> None:
    machine.model("A")
    machine.configure(A={"temperature": -1})
    bad, good = machine.catalogue().offered.sources[1], machine.catalogue().offered.sources[0]
    assert bad.card.problem == "A: temperature (model): got -1, expected a number >= 0" and good.card.problem is None
    with pytest.raises(AppError, match="got -1"):
        bad.check()


def test_a_damaged_file_counts_only_at_the_start(machine: Machine) -> None:
    machine.configure(mini={"top_k": 3})
    catalogue = machine.catalogue()
    (machine.base / "model_settings.json").write_text("{")
    assert catalogue.changed()
    for _ in range(2):
        offered = catalogue.read()
        assert not catalogue.changed() and value(catalogue, 0, "top_k") == (3, "model")
        kept = [note for note in offered.notes if "the settings read before count on" in note]
        assert len(kept) == 1 and "model_settings.json" in kept[0]
    machine.configure(mini={"top_k": 4})
    assert catalogue.changed() and catalogue.read().notes == () and value(catalogue, 0, "top_k") == (4, "model")
    (machine.base / "model_settings.json").write_text("{")
    with pytest.raises(SettingsError):
        machine.catalogue()


@pytest.mark.parametrize("name", ["model_settings.json", "model_profiles.json", "settings.json", "dflash2_extras.json"])
def test_every_settings_file_is_watched(machine: Machine, name: str) -> None:
    machine.configure(mini={})
    catalogue = machine.catalogue()
    assert not catalogue.changed()
    machine._write(name, {"version": 1})
    assert catalogue.changed()


def test_model_folders_are_searched_again_when_asked_or_moved(machine: Machine, tmp_path: Path) -> None:
    catalogue = machine.catalogue()
    machine.model("A")
    machine.configure(mini={"top_k": 3})
    assert len(catalogue.read().sources) == 1
    assert [source.name for source in catalogue.read(rescan=True).sources] == ["mini", "A"]
    elsewhere = tmp_path / "elsewhere"
    machine.model("B").rename(elsewhere)
    machine.shared(model={"model_dirs": [str(elsewhere)], "model_fallback": True})
    offered = catalogue.read()
    assert [source.name for source in offered.sources] == ["mini", "elsewhere"] and offered.fallback


def test_weights_count_the_drafter_as_it_will_be_held(machine: Machine) -> None:
    machine.model("A")
    drafter = str(machine.drafter("D"))
    sizes = []
    for record in ({}, {**ON, "dflash_draft_model": drafter},
                   {**ON, "dflash_draft_model": drafter, "dflash_draft_quant_enabled": True,
                    "dflash_draft_quant_group_size": 32}):  # fmt: skip
        machine.configure(A=record)
        sizes.append(machine.catalogue().offered.sources[1].weight_bytes)
    plain, full, quantized = sizes
    assert 0 < plain < quantized < full


def test_what_cannot_fit_is_refused_with_the_numbers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.model("A")
    monkeypatch.setattr("dflash2_mlx.analysis.memory_limit", lambda: 1000)
    with pytest.raises(AppError, match=r"A: got .* GB at 1024 tokens .*expected at most 0.0 GB"):
        machine.catalogue().offered.sources[1].check()


def test_idle_limits_come_from_the_model_else_from_omlx(machine: Machine) -> None:
    machine.model("A")
    machine.model("B")
    machine.configure(A={"ttl_seconds": 60, "is_pinned": True, "is_hidden": True, "display_name": "The A"})
    machine.shared(idle_timeout={"idle_timeout_seconds": 900})
    cards = {source.name: source.card for source in machine.catalogue().offered.sources}
    assert (cards["A"].ttl_s, cards["B"].ttl_s) == (60, 900)
    assert (cards["A"].is_pinned, cards["A"].is_hidden, cards["A"].display_name) == (True, True, "The A")


def test_a_source_that_is_loaded_already() -> None:
    served = tiny_served("there")
    source = LoadedSource(served)
    source.check()
    assert source.name == "there" and source.view(source.load()) is served
    changed = replace(served, config=replace(served.defaults, max_tokens=3))
    assert changed.defaults.max_tokens == 3 and served.defaults.max_tokens == 64
    assert mini_source(max_tokens=5).setup.effective["max_tokens"] == 5


def offer(name: str, **card: Any) -> ReadySource:
    return ReadySource(name, lambda: tiny_served(name), card=Card(**card))


SOURCES = [
    offer("Big-4bit", model_id="Big-4bit", alias="Bob"),
    offer("Big-4bit:fast", model_id="Big-4bit", alias="Bob", profile="f", base="Big-4bit"),
    offer("org/Tiny", model_id="org--Tiny"),
    offer("one/Twice"),
    offer("two/Twice"),
    offer("bob", model_id="bob"),
]


@pytest.mark.parametrize(("name", "found"), [
    ("Big-4bit", "Big-4bit"), ("big-4BIT", "Big-4bit"), ("Bob", "Big-4bit"), ("bob", "bob"), ("BOB", "bob"),
    ("Big-4bit:fast", "Big-4bit:fast"), ("Bob:fast", "Big-4bit:fast"), ("bob:FAST", "Big-4bit:fast"),
    ("Bob:slow", None), ("anybody/Big-4bit", "Big-4bit"), ("anybody/Bob:fast", "Big-4bit:fast"),
    ("org/Tiny", "org/Tiny"), ("org--tiny", "org/Tiny"), ("tiny", "org/Tiny"), ("Twice", None), ("", None), ("/", None),
    ("../../etc/passwd", None), ("x" * 10**5, None),
])  # fmt: skip
def test_a_name_is_looked_up_as_in_omlx(name: str, found: str | None) -> None:
    assert Names(SOURCES).find(name) == found
