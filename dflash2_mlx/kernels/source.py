"""Finds the text of a Metal kernel: in the installed package, or in the checkout's metal/.

Owns: where the files are and what is handed to MLX. Knows nothing of what a kernel computes.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PACKAGED = Path(__file__).resolve().parent.parent / "_metal"
CHECKOUT = Path(__file__).resolve().parent.parent.parent / "metal"


@cache
def kernel_source(name: str, folders: tuple[Path, ...] = (PACKAGED, CHECKOUT)) -> str:
    """The body of a kernel, without comments: MLX builds and hashes the whole text at every call.

    Lines stay where they are in the file, so that a compiler's message points to the right one.

    Raises:
        FileNotFoundError: naming the folders that were looked at, the first that has the file counts.
    """
    for folder in folders:
        path = folder / f"{name}.metal"
        if path.is_file():
            return re.sub(r"[ \t]*//.*", "", path.read_text(encoding="ascii"))
    raise FileNotFoundError(f"Metal kernel {name!r}: no {name}.metal in {_places(folders)}")


@cache
def all_sources(folders: tuple[Path, ...] = (PACKAGED, CHECKOUT)) -> str:
    """The bodies of all kernels, one after another: what races were run with."""
    names = next((names for folder in folders if (names := sorted(path.stem for path in folder.glob("*.metal")))), [])
    if not names:
        raise FileNotFoundError(f"Metal kernels: no .metal file in {_places(folders)}")
    return "".join(kernel_source(name, folders) for name in names)


def _places(folders: tuple[Path, ...]) -> str:
    return " and ".join(str(folder) for folder in folders)
