"""The help is tested text: a changed flag shows in the diff of `help.txt`.

`python -m tests.app.test_help` writes that file anew.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dflash2_app.cli import COMMANDS, GROUPS, NAME, app

from .conftest import Run, environment

SNAPSHOT = Path(__file__).with_name("help.txt")


def help_text() -> str:
    """All help pages, without the frames and the line breaks that depend on Typer's version and the width."""
    pages = []
    for arguments in ([], *([name] for name in COMMANDS), *(path for name in GROUPS for path in _paths(name))):
        result = CliRunner(env={"COLUMNS": "220", "NO_COLOR": "1"}).invoke(app, [*arguments, "--help"], prog_name=NAME)
        assert result.exit_code == 0
        bare = re.sub("[╭╮╰╯│─]|<bool>", " ", result.stdout)  # some versions of Typer name the type of a flag
        lines = (" ".join(line.split()) for line in bare.splitlines())
        pages.append("\n".join([f"$ {' '.join([NAME, *arguments])} --help", *filter(None, lines)]))
    return "\n\n".join(pages) + "\n"


def _paths(name: str) -> list[list[str]]:
    """A group, and every command and group in it."""

    def below(group: typer.Typer, path: list[str]) -> list[list[str]]:
        names = [item.name or item.callback.__name__ for item in group.registered_commands]
        inner = [below(item.typer_instance, [*path, item.name]) for item in group.registered_groups]
        return [path, *([*path, name] for name in names), *(found for paths in inner for found in paths)]

    return below(GROUPS[name], [name])


def test_help_is_the_committed_text() -> None:
    assert help_text() == SNAPSHOT.read_text(encoding="utf-8")


def test_no_command_shows_the_help(run: Run) -> None:
    shown = run()
    assert shown.code == 0
    assert all(name in shown.out for name in (*COMMANDS, *GROUPS))


@pytest.mark.parametrize("words", [["models"], ["settings"], ["settings", "profile"]])
def test_a_group_alone_shows_its_help_and_no_empty_error(run: Run, words: list[str]) -> None:
    shown = run(*words)
    assert shown.code == 2
    assert "Usage:" in shown.out + shown.err and "--help" in shown.out + shown.err and "error:" not in shown.err


def test_version_names_what_it_runs_on(run: Run) -> None:
    shown = run("--version")
    assert shown.code == 0
    assert re.fullmatch(r"dflash2-mlx .+ \(mlx [\d.]+, mlx-lm [\d.]+, Python [\d.]+\)\n", shown.out)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["generate", "--help"], ["generate", "--nope"], ["models", "pull", "--help"], ["--version"]],
)
def test_what_needs_no_model_imports_no_mlx(arguments: list[str]) -> None:
    script = (
        "import sys; from dflash2_app.cli import main; main(sys.argv[1:]);"
        "print('loaded:', *(m for m in sys.modules if m.split('.')[0] in ('mlx', 'mlx_lm', 'numpy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment(), timeout=30
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].strip() == "loaded:"


if __name__ == "__main__":
    SNAPSHOT.write_text(help_text(), encoding="utf-8")
