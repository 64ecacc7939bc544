"""Who may import whom (docs/architecture.md), read from the source without importing it.

A room imports only from floors below its own. Every import counts: also those inside functions and under
`TYPE_CHECKING`, because a late import upwards is still a knot. Run as a script, it prints rooms, floors and arrows.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Floors of rooms, the lowest first. A room is a file or a folder of the package; it imports only from floors below its
# own. Inside a room files import each other freely, but never in a circle.
LIBRARY = [
    ["errors"],
    ["device"],
    ["kernels", "validation"],
    ["sampling", "layers", "names"],
    ["drafters", "targets"],
    ["decode", "checkpoints"],
    ["engine", "prefix_cache"],
    ["generation", "tuning"],
    ["analysis", "training", "bench", "tune"],  # tune: the old name of tuning, for one release
    [""],  # dflash2_mlx/__init__.py: the public names
]
APPLICATION = [
    ["errors", "files"],
    ["settings", "console"],
    ["models"],
    ["engine"],
    ["manage", "bench", "chat", "reports"],
    ["web"],
    ["commands"],
    ["cli"],
    ["__main__"],
    [""],
]
WEB = [
    ["http"],
    ["serving"],
    ["api"],
    ["openapi", "pages"],
    ["guard", "server"],
    ["app"],
    [""],
]

# jinja2: what chat templates raise; yaml: what a model card's metadata raises
LIBRARY_NEEDS = {"mlx", "mlx_lm", "huggingface_hub", "numpy", "jinja2", "yaml"}
APPLICATION_NEEDS = set(
    "dflash2_mlx filelock huggingface_hub llguidance matplotlib numpy prompt_toolkit pyarrow rich starlette typer "
    "uvicorn".split()
)
# What an application may import of the library: its public names, the public sub-packages and the table of sampling.
PUBLIC_MODULES = {
    "dflash2_mlx",
    "dflash2_mlx.sampling.fields",
    "dflash2_mlx.training",
    "dflash2_mlx.analysis",
    "dflash2_mlx.bench",
    "dflash2_mlx.tuning",
}


@dataclass(frozen=True)
class Import:
    """One imported module, as a dotted absolute name, and the line that asks for it."""

    name: str
    line: int


@dataclass(frozen=True)
class Package:
    """A package on disk and the floors of its rooms."""

    name: str
    folder: Path
    floors: list[list[str]]
    needs: set[str]

    def modules(self) -> dict[str, Path]:
        """Map each module's dotted name inside the package ("" for the package itself) to its file."""
        found = {}
        for path in sorted(self.folder.rglob("*.py")):
            parts = list(path.relative_to(self.folder).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
        return found

    def floor(self, module: str) -> int | None:
        """The floor of a module's room; None where it has no room."""
        room = module.split(".")[0]
        return next((number for number, rooms in enumerate(self.floors) if room in rooms), None)


LIBRARY_FOLDER, APPLICATION_FOLDER = ROOT / "dflash2_mlx", ROOT / "app" / "dflash2_app"
PACKAGES = {
    "library": Package("dflash2_mlx", LIBRARY_FOLDER, LIBRARY, LIBRARY_NEEDS),
    "application": Package("dflash2_app", APPLICATION_FOLDER, APPLICATION, APPLICATION_NEEDS),
    "web": Package("dflash2_app.web", APPLICATION_FOLDER / "web", WEB, APPLICATION_NEEDS),
}


def imports_of(path: Path, module: str, package: Package) -> Iterator[Import]:
    """Yield every module that a file imports; `from p import m` names `p.m` where that is a module of ours."""
    known = {f"{package.name}.{name}".rstrip(".") for name in package.modules()}
    dotted = f"{package.name}.{module}".rstrip(".").split(".")
    parent = dotted if path.name == "__init__.py" else dotted[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = parent[: len(parent) - node.level + 1] if node.level else []
            source = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield Import(full if full in known else source, node.lineno)


def violations(package: Package) -> list[str]:
    """List every import of a package that breaks the rules, one readable line each."""
    problems = []
    for module, path in package.modules().items():
        where = path.relative_to(package.folder.parent)
        if package.floor(module) is None:
            problems.append(f"{where}: it has no room; add one to this test and to docs/architecture.md")
            continue
        for used in imports_of(path, module, package):
            reason = broken_rule(package, module, used.name)
            if reason:
                problems.append(f"{where}:{used.line}: imports {used.name}: {reason}")
    return problems


def broken_rule(package: Package, module: str, used: str) -> str | None:
    """Say which rule an import breaks, or None."""
    if used != package.name and not used.startswith(f"{package.name}."):
        top = used.split(".")[0]
        if top == "dflash2_mlx" and used not in PUBLIC_MODULES:
            return "an application uses public names only"
        own = top == package.name.split(".")[0]  # of the package around this one, which has floors of its own
        known = own or top in sys.stdlib_module_names or top in package.needs
        return None if known else f"not among {sorted(package.needs)}"
    inner = used.removeprefix(package.name).lstrip(".")
    if inner.split(".")[0] == module.split(".")[0]:
        return None
    mine, floor = package.floor(module), package.floor(inner)
    assert mine is not None
    if floor is None:
        return "it has no room"
    if floor == mine:
        return "rooms of one floor do not import each other"
    return f"'{inner or package.name}' is on a higher floor" if floor > mine else None


def circles(package: Package) -> list[str]:
    """List import circles among a package's modules (open layers could form one)."""
    modules = package.modules()
    graph = {
        module: {
            name
            for used in imports_of(path, module, package)
            if f"{used.name}.".startswith(f"{package.name}.")
            and (name := used.name.removeprefix(package.name).lstrip(".")) in modules
            and name != module
        }
        for module, path in modules.items()
    }
    done: set[str] = set()
    found: list[str] = []

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            found.append(" -> ".join([*trail[trail.index(module) :], module]))
            return
        if module not in done:
            for used in sorted(graph[module]):
                visit(used, [*trail, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    return found


@pytest.mark.parametrize("which", PACKAGES)
def test_imports_go_down_the_floors(which: str) -> None:
    package = PACKAGES[which]
    assert violations(package) + circles(package) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("sampling/config.py", "from ..decode.session import Session", "higher floor"),
        ("sampling/config.py", "def f():\n    from dflash2_mlx import load", "higher floor"),
        ("errors.py", "import dflash2_mlx", "higher floor"),
        ("decode/stats.py", "import typer", "not among"),
        ("decode/stats.py", "import dflash2_app.cli", "not among"),
        ("sampling/one.py", "from ..layers.two import f", "rooms of one floor"),
        ("surprise.py", "", "it has no room"),
        ("training/one.py", "from . import two", "training.one -> training.two -> training.one"),
    ],
)
def test_the_checker_sees_a_broken_rule(tmp_path: Path, file: str, source: str, expected: str) -> None:
    folder = tmp_path / "dflash2_mlx"
    for name in ("__init__", "errors", "engine", "decode/session", "layers/two", "training/two", "sampling/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("", encoding="utf-8")
    (folder / "training" / "two.py").write_text("from .one import f\n", encoding="utf-8")
    (folder / file).write_text(source, encoding="utf-8")
    package = Package("dflash2_mlx", folder, LIBRARY, LIBRARY_NEEDS)
    assert any(expected in problem for problem in violations(package) + circles(package))


def test_the_checker_accepts_imports_from_below(tmp_path: Path) -> None:
    folder = tmp_path / "dflash2_mlx"
    (folder / "drafters").mkdir(parents=True)
    (folder / "errors.py").write_text("import json\n", encoding="utf-8")
    (folder / "drafters" / "base.py").write_text("", encoding="utf-8")
    (folder / "drafters" / "model.py").write_text(
        "import mlx.nn as nn\nfrom ..errors import ConfigError\nfrom .. import errors\nfrom .base import Drafter\n",
        encoding="utf-8",
    )
    (folder / "__init__.py").write_text("from .drafters.model import DraftModel\n", encoding="utf-8")
    package = Package("dflash2_mlx", folder, LIBRARY, LIBRARY_NEEDS)
    assert violations(package) + circles(package) == []


def test_an_application_may_not_reach_inside_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "dflash2_app"
    folder.mkdir()
    (folder / "files.py").write_text("import dflash2_mlx as d2\nimport mlx.core as mx\n", encoding="utf-8")
    (folder / "cli.py").write_text("from dflash2_mlx.decode.session import Session\n", encoding="utf-8")
    found = violations(Package("dflash2_app", folder, APPLICATION, APPLICATION_NEEDS))
    assert len(found) == 2
    assert "mlx.core" in found[1]
    assert "public names only" in found[0]


def figures(package: Package) -> str:
    """Rooms, floors and arrows between rooms, in words."""
    arrows = set()
    for module, path in package.modules().items():
        for used in imports_of(path, module, package):
            if used.name.startswith(f"{package.name}."):
                arrows.add((module.split(".")[0], used.name.removeprefix(f"{package.name}.").split(".")[0]))
    between = [arrow for arrow in arrows if arrow[0] != arrow[1]]
    rooms = sum(map(len, package.floors))
    return f"{package.name}: {rooms} rooms, {len(package.floors)} floors, {len(between)} arrows between rooms"


if __name__ == "__main__":
    for each in PACKAGES.values():
        print(figures(each), *violations(each), *circles(each), sep="\n")
