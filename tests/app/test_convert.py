"""`convert` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dflash2_mlx as d2

from .conftest import Run

DRAFTER = Path(d2.__file__).parent / "data" / "mini" / "drafter"


def test_a_copy_is_made_and_drafts_like_draft_bits(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    ran = run("convert", DRAFTER, "--output", copy, "--bits", "4")
    assert ran.code == 0, ran.err
    assert "4-bit, groups of 64" in ran.out and "MB before" in ran.out and f"--drafter {copy} uses it" in ran.err
    asked = ["generate", "def f(x):", "--max-tokens", "16", "--json", "--no-chat-template"]
    copied, on_load = (json.loads(run(*asked, *flags).out) for flags in (["--drafter", copy], ["--draft-bits", "4"]))
    for field in ("token_ids", "rounds", "acceptance_by_position"):
        assert copied[field] == on_load[field]
    again = run("generate", "x", "--drafter", copy, "--draft-bits", "4")
    assert again.code == 2 and "--draft-bits: got 4, expected none" in again.error


def test_json_and_the_note_about_the_licence(run: Run, tmp_path: Path) -> None:
    ran = run("convert", DRAFTER, "--output", tmp_path / "copy", "--json", "--group-size", "32")
    shown = json.loads(ran.out)
    assert (shown["bits"], shown["group_size"], shown["folder"]) == (8, 32, str(tmp_path / "copy"))
    assert shown["bytes_after"] < shown["bytes_before"] and shown["licence"] is None
    assert "states no licence" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--output", "y", "--bits", "3"], "--bits: got '3', expected 4 or 8"),
        (["x", "--output", "y", "--group-size", "48"], "--group-size: got '48'"),
        (["x"], "--output"),
        (["", "--output", "y"], "drafter: got '', expected a folder or a Hub id"),
        ([DRAFTER, "--output", DRAFTER], "--output: got"),
    ],
)
def test_bad_options(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("convert", *arguments)
    assert ran.code == 2 and words in ran.error and ran.out == ""


def test_a_forbidding_licence_says_what_to_do_instead(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "config.json").write_text((DRAFTER / "config.json").read_text())
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\n---\n")
    ran = run("convert", folder, "--output", tmp_path / "copy")
    assert ran.code == 1 and "licence: got 'cc-by-nc-nd-4.0'" in ran.error and "hint: --draft-bits" in ran.err
    assert not (tmp_path / "copy").exists()


def test_a_target_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run("convert", DRAFTER.parent / "target", "--output", tmp_path / "copy")
    assert ran.code == 1 and "architectures: got ['Qwen3ForCausalLM']" in ran.error
