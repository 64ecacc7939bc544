"""Who may import whom (docs/architecture.md, section 2), read from the source without importing it.

A module imports only from layers above its own. Every import counts: also those inside functions and under
`TYPE_CHECKING`, because a late import upwards is still a knot.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# One line per layer, lowest first. "x.*" stands for every module of the folder that has no line of its own.
# A layer named here need not exist yet; a module that no line covers fails the test: give it its place.
LIBRARY = [
    "errors",
    "blas",
    "embedded",
    "values",
    "shares",
    "headers",
    "chips",
    "runtime",
    "config",
    "drafter.config",
    "rng",
    "kernels._source",
    "kernels._metal",
    "kernels._metal_qmm",
    "kernels._dispatch",
    "kernels._contest",
    "kernels._target_calls",
    "kernels.dynamic_conv",
    "kernels.top_candidates",
    "kernels.qmm_forms",
    "kernels.qmm_rows",
    "kernels.*",
    "kernels",
    "sampling",
    "acceptance",
    "kernels.accept",
    "buffers",
    "layout",
    "row_layers",
    "drafter.conv",
    "drafter.joined",
    "drafter.attention",
    "drafter.decoder",
    "drafter.selector",
    "drafter.context",
    "drafter.model",
    "drafter.window",
    "drafter",
    "weights",
    "constraints",
    "targets.gated_delta",
    "targets.caches",
    "targets.base",
    "targets.attention",
    "targets.adapter",
    "targets.dense",
    "targets.qwen3_5",
    "targets.muse_glimmer",
    "targets.registry",
    "targets.config",
    "targets.reading",
    "targets",
    "kernels.target_contests",
    "kernels.contests",
    "timing",
    "costs",
    "fingerprint",
    "shapes",
    "memory",
    "dtypes",
    "cost_model",
    "describe",
    "checkpoint",
    "pairing",
    "tokenizer",
    "load",
    "convert",
    "stats",
    "widths",
    "verify",
    "rounds",
    "snapshots",
    "loop",
    "session",
    "prefix_cache.frozen",
    "prefix_cache.files",
    "prefix_cache.disk",
    "prefix_cache.cache",
    "prefix_cache",
    "text",
    "cuts",
    "counting",
    "results",
    "requests",
    "reply",
    "generate",
    "conversation",
    "compare",
    "training.*",
    "training",
    "analysis.*",
    "analysis",
    "bench.*",
    "bench",
    "tune.race",
    "tune.record",
    "tune.run",
    "tune.background",
    "tune",
    "",  # dflash2_mlx/__init__.py: the public names
]
APPLICATION = [
    "errors",
    "output",
    "whole_file",
    "plots",
    "charts",
    "thinking",
    "settings.*",
    "settings",
    "models.*",
    "models",
    "fit",
    "tuning",
    "loading",
    "engine",
    "samples",
    "machine",
    "manage.*",
    "manage",
    "side_by_side",
    "bench.*",
    "bench",
    "chat.*",
    "chat",
    "web.*",
    "web",
    "commands.*",
    "commands",
    "cli",
    "__main__",
    "",
]
# Modules of these layers may use each other (never in a circle); elsewhere neighbours of one layer may not.
OPEN_LAYERS = {"training.*", "analysis.*", "bench.*", "settings.*", "models.*", "manage.*", "chat.*", "web.*",
               "commands.*"}  # fmt: skip

# jinja2: what chat templates raise; yaml: what a model card's metadata raises
LIBRARY_NEEDS = {"mlx", "mlx_lm", "huggingface_hub", "numpy", "jinja2", "yaml"}
APPLICATION_NEEDS = set(
    "dflash2_mlx filelock huggingface_hub llguidance matplotlib numpy prompt_toolkit pyarrow rich starlette typer "
    "uvicorn".split()
)
# What an application may import of the library: its public names and the public sub-packages.
PUBLIC_MODULES = {
    "dflash2_mlx",
    "dflash2_mlx.training",
    "dflash2_mlx.analysis",
    "dflash2_mlx.bench",
    "dflash2_mlx.tune",
}


@dataclass(frozen=True)
class Import:
    """One imported module, as a dotted absolute name, and the line that asks for it."""

    name: str
    line: int


@dataclass(frozen=True)
class Package:
    """A package on disk and the order of its layers."""

    folder: Path
    order: list[str]
    needs: set[str]

    @property
    def name(self) -> str:
        return self.folder.name

    def modules(self) -> dict[str, Path]:
        """Map each module's dotted name inside the package ("" for the package itself) to its file."""
        found = {}
        for path in sorted(self.folder.rglob("*.py")):
            parts = list(path.relative_to(self.folder).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
        return found

    def layer(self, module: str) -> str | None:
        """Return the line of `order` that covers a module, the exact name first, then its folder's "x.*"."""
        if module in self.order:
            return module
        folder = module
        while "." in folder:
            folder = folder.rpartition(".")[0]
            if f"{folder}.*" in self.order:
                return f"{folder}.*"
        return None


PACKAGES = {
    "library": Package(ROOT / "dflash2_mlx", LIBRARY, LIBRARY_NEEDS),
    "application": Package(ROOT / "app" / "dflash2_app", APPLICATION, APPLICATION_NEEDS),
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
        own = package.layer(module)
        if own is None:
            problems.append(f"{where}: no layer covers it; add it to this test and to docs/architecture.md")
            continue
        for used in imports_of(path, module, package):
            reason = broken_rule(package, module, own, used.name)
            if reason:
                problems.append(f"{where}:{used.line}: imports {used.name}: {reason}")
    return problems


def broken_rule(package: Package, module: str, own: str, used: str) -> str | None:
    """Say which rule an import breaks, or None."""
    top = used.split(".")[0]
    if top != package.name:
        if top == "dflash2_mlx" and top in package.needs and used not in PUBLIC_MODULES:
            return "an application uses public names only"
        if top in sys.stdlib_module_names or top in package.needs:
            return None
        return f"not among {sorted(package.needs)}"
    inner = used.removeprefix(package.name).lstrip(".")
    layer = package.layer(inner)
    if layer is None:
        return "no layer covers it"
    if layer == own and inner != module and own not in OPEN_LAYERS:
        return "neighbours of one layer do not import each other"
    if package.order.index(layer) > package.order.index(own):
        return f"'{layer or package.name}' is a later layer than '{own}'"
    return None


def circles(package: Package) -> list[str]:
    """List import circles among a package's modules (open layers could form one)."""
    modules = package.modules()
    graph = {
        module: {
            name
            for used in imports_of(path, module, package)
            if used.name.split(".")[0] == package.name
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
def test_imports_follow_the_layers(which: str) -> None:
    package = PACKAGES[which]
    if not package.folder.is_dir():
        pytest.skip(f"{package.name} does not exist yet")
    assert violations(package) + circles(package) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("config.py", "from .session import DFlash2Session", "later layer"),
        ("config.py", "def f():\n    from dflash2_mlx import load", "later layer"),
        ("errors.py", "import dflash2_mlx", "later layer"),
        ("stats.py", "import typer", "not among"),
        ("stats.py", "import dflash2_app.cli", "not among"),
        ("kernels/one.py", "from .two import f", "neighbours"),
        ("surprise.py", "", "no layer covers it"),
        ("training/one.py", "from . import two", "training.one -> training.two -> training.one"),
    ],
)
def test_the_checker_sees_a_broken_rule(tmp_path: Path, file: str, source: str, expected: str) -> None:
    folder = tmp_path / "dflash2_mlx"
    for sub in ("kernels", "training"):
        (folder / sub).mkdir(parents=True)
    for name in ("__init__", "errors", "config", "load", "session", "stats", "kernels/two"):
        (folder / f"{name}.py").write_text("", encoding="utf-8")
    (folder / "training" / "two.py").write_text("from .one import f\n", encoding="utf-8")
    (folder / file).write_text(source, encoding="utf-8")
    package = Package(folder, LIBRARY, LIBRARY_NEEDS)
    assert any(expected in problem for problem in violations(package) + circles(package))


def test_the_checker_accepts_imports_from_above(tmp_path: Path) -> None:
    folder = tmp_path / "dflash2_mlx"
    (folder / "drafter").mkdir(parents=True)
    (folder / "errors.py").write_text("import json\n", encoding="utf-8")
    (folder / "drafter" / "model.py").write_text(
        "import mlx.nn as nn\nfrom ..errors import ConfigError\nfrom .. import errors\n", encoding="utf-8"
    )
    (folder / "__init__.py").write_text("from .drafter.model import DraftModel\n", encoding="utf-8")
    package = Package(folder, LIBRARY, LIBRARY_NEEDS)
    assert violations(package) + circles(package) == []


def test_an_application_may_not_reach_inside_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "dflash2_app"
    folder.mkdir()
    (folder / "engine.py").write_text("import dflash2_mlx as d2\nimport mlx.core as mx\n", encoding="utf-8")
    (folder / "cli.py").write_text("from dflash2_mlx.session import DFlash2Session\n", encoding="utf-8")
    found = violations(Package(folder, APPLICATION, APPLICATION_NEEDS))
    assert len(found) == 2
    assert "mlx.core" in found[1]
    assert "public names only" in found[0]
