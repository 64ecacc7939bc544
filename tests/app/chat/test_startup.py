"""What a chat starts with: the decision, what is asked to make it, and the question before a download."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from dflash2_app.chat import startup
from dflash2_app.chat.startup import PairChoice, Seams, Situation, decide, declined, look_around, offer_text

PAIR = PairChoice("org/target", "org/drafter", 15_200_000_000, "The drafter's licence allows non-commercial use only")
MAC = Situation(None, None, apple_silicon=True, online=True, interactive=True, choice=PAIR)


@pytest.mark.parametrize(
    ("changes", "action", "words"),
    [
        ({}, "offer", ""),
        ({"named": "x", "configured": "y"}, "named", ""),
        ({"configured": "y"}, "configured", "using y, the default"),
        ({"configured": "y", "apple_silicon": False}, "configured", "using y"),
        ({"apple_silicon": False}, "mini", "not a Mac"),
        ({"choice": None}, "mini", "no known pair fits"),
        ({"online": False}, "mini", "org/target would fit this Mac, but there is no network"),
        ({"interactive": False}, "mini", "nobody is here to agree"),
        ({"choice": replace(PAIR, download_bytes=0), "online": False}, "pair", "using org/target with org/drafter"),
        ({"choice": replace(PAIR, download_bytes=None)}, "offer", ""),
    ],
)
def test_the_decision(changes: dict[str, Any], action: str, words: str) -> None:
    start = decide(replace(MAC, **changes))
    assert start.action == action and words in start.note
    assert bool(start.note) == (action not in ("offer", "named")), "what the user did not choose is said"
    assert (start.pair is not None) == (action in ("offer", "pair"))
    if action == "mini":
        assert start.note.endswith("using the embedded mini pair")


def test_a_declined_download_starts_the_mini_pair() -> None:
    start = declined(PAIR)
    assert start.action == "mini" and "org/target is not downloaded" in start.note


def test_the_question_names_size_and_licence() -> None:
    text = offer_text(PAIR)
    assert all(word in text for word in ("org/target", "org/drafter", "15.2 GB", "non-commercial use only."))
    assert "GB" not in offer_text(replace(PAIR, download_bytes=None))


def machine(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    facts = {"system": "Darwin 25.0", "machine": "arm64", "wired_limit_bytes": 48, "memory_bytes": 64, **changes}
    monkeypatch.setattr("dflash2_mlx.analysis.describe_machine", lambda: facts)


def test_only_what_matters_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def best_fit(memory_bytes: int) -> PairChoice:
        asked.append(memory_bytes)
        return PAIR

    def online() -> bool:
        asked.append("network")
        return True

    monkeypatch.setattr(startup, "is_online", online)
    seams = Seams(best_fit=best_fit)
    machine(monkeypatch)
    assert look_around("x", interactive=True, seams=seams).named == "x"
    assert look_around(None, interactive=True, seams=replace(seams, configured=lambda: "y")).configured == "y"
    assert asked == []
    assert look_around(None, interactive=True, seams=seams) == MAC
    assert asked == [48, "network"]
    asked.clear()
    assert look_around(None, interactive=False, seams=seams).choice == PAIR
    assert asked == [48], "the network is not touched where nothing would be downloaded"
    machine(monkeypatch, wired_limit_bytes=None)
    look_around(None, interactive=False, seams=seams)
    assert asked[-1] == 64
    machine(monkeypatch, system="Linux 6.1")
    assert look_around(None, interactive=True, seams=seams).choice is None


def test_without_seams_the_mini_pair_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert decide(look_around(None, interactive=True, seams=Seams())).action == "mini"


def test_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert startup.is_online() is False  # the tests' home is offline
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    assert startup.is_online() is False, "nobody listens there"
