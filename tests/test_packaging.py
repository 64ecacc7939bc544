"""What the wheel and the sdist carry, read from freshly built ones."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"dflash2_mlx": "dflash2_mlx", "app/dflash2_app": "dflash2_app", "metal": "dflash2_mlx/_metal"}


def build(project: Path, target: str, out: Path) -> Path:
    """Build one `wheel` or `sdist` of a project folder, without network, and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (built,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def source_files(folder: str) -> list[str]:
    """List the files of a source folder that belong in a package."""
    return [
        path.relative_to(ROOT / folder).as_posix()
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    ]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked: the folder with its pyproject.toml."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheel(
    request: pytest.FixtureRequest, sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[zipfile.ZipFile]:
    """The wheel, built from the checkout and once more from the sdist, as pip may do either."""
    project = ROOT if request.param == "checkout" else sdist
    with zipfile.ZipFile(build(project, "wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode("utf-8"))


def test_wheel_carries_every_source_file(wheel: zipfile.ZipFile) -> None:
    expected = {f"{inside}/{name}" for folder, inside in SOURCES.items() for name in source_files(folder)}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "dflash2_mlx/_metal/README.md" in packed
    assert packed == expected


def test_wheel_has_no_foreign_top_level(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}
    assert tops <= {"dflash2_mlx", "dflash2_app"}


def test_wheel_carries_the_mini_pair(wheel: zipfile.ZipFile) -> None:
    if not (ROOT / "dflash2_mlx" / "data" / "mini").is_dir():
        pytest.skip("the mini pair is not in the tree yet")
    names = set(wheel.namelist())
    for part in ("target", "drafter"):
        assert f"dflash2_mlx/data/mini/{part}/config.json" in names
        assert any(
            name.startswith(f"dflash2_mlx/data/mini/{part}/") and name.endswith(".safetensors") for name in names
        )


def test_wheel_asks_for_the_right_mlx_on_each_system(wheel: zipfile.ZipFile) -> None:
    requires = metadata(wheel).get_all("Requires-Dist") or []
    mlx = sorted(line for line in requires if line.split(";")[0].startswith(("mlx>", "mlx[")))
    assert len(mlx) == 2
    assert "darwin" in mlx[0] and "arm64" in mlx[0]
    assert mlx[1].startswith("mlx[cpu]") and "linux" in mlx[1]
    assert not any(line.startswith(("torch", "jax", "tensorflow")) for line in requires)


def test_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "dflash2-mlx = dflash2_app.__main__:run" in wheel.read(entry_points).decode("utf-8")
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
    assert sorted(metadata(wheel).get_all("Provides-Extra") or []) == ["bench", "test", "train"]


def test_sdist_can_be_worked_on(sdist: Path) -> None:
    for name in (
        "tests/test_packaging.py",
        "metal/README.md",
        "tools/convert_smollm2.py",
        "docs/architecture.md",
        ".ci/run",
        "LICENSE",
    ):
        assert (sdist / name).exists(), name
    assert not (sdist / "shared").exists()
    assert not (sdist / ".venv").exists()
