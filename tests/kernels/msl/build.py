"""Compiles a kernel's C++ with g++, once for each text, to a program of its own.

A program, not a library inside pytest: a kernel that reads outside its buffers may crash, and must not take the
other tests with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHIM = Path(__file__).resolve().parent / "shim"
SANITIZERS = {
    "": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"],
    "thread": ["-fsanitize=thread"],
}
ENGINE_MACROS = {"": [], "address": ["-DMSL_ASAN"], "thread": ["-DMSL_TSAN"]}
# Only warnings that no version of g++ gives without cause.
WARNINGS = ["-Werror=uninitialized", "-Werror=unused-variable", "-Werror=unused-but-set-variable"]
# ThreadSanitizer needs memory at fixed places: no randomised layout.
FIXED_LAYOUT = ["setarch", "-R"]


class KernelError(RuntimeError):
    """A kernel does not compile, or breaks a rule while it runs."""


@cache
def why_not(sanitizer: str = "") -> str | None:
    """Why kernels cannot be run here, or not with this sanitizer, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the emulator of Metal runs on x86-64 Linux, not on {platform.machine()} {sys.platform}"
    if shutil.which("g++") is None:
        return "the emulator of Metal needs g++"
    if sanitizer == "thread" and (
        shutil.which(FIXED_LAYOUT[0]) is None
        or subprocess.run([*FIXED_LAYOUT, "true"], capture_output=True, check=False).returncode
    ):
        return "looking for races needs `setarch -R`, which is not allowed here"
    return None


@dataclass(frozen=True)
class Builder:
    """Compiles into `cache`, where what has been compiled stays.

    Args:
        sanitizer: "", "address" (bounds, undefined behaviour) or "thread" (races).
        fused: allow a * b + c to be rounded once, as Metal's compiler does.
    """

    cache: Path
    sanitizer: str = ""
    fused: bool = False

    def build(self, source: str) -> Path:
        """The program of one kernel."""
        return _built(self, source)

    def _build(self, source: str) -> Path:
        # The engine goes without -fsanitize: its own memory is not under test.
        engine_flags = ["-c", "-O2", *ENGINE_MACROS[self.sanitizer]]
        engine = self._compile((SHIM / "engine.cpp").read_text(), ".o", engine_flags)
        # With -O1 alone, g++ has the instruction and never uses it.
        fusing = ["-ffp-contract=fast", "-mfma", "-fexpensive-optimizations"]
        contract = fusing if self.fused else ["-ffp-contract=off"]
        flags = ["-O1", "-g1", *SANITIZERS[self.sanitizer], *contract, *WARNINGS]
        return self._compile(source, "", ["-I", str(self._precompiled(flags)), *flags], [str(engine)])

    def _precompiled(self, flags: list[str]) -> Path:
        """A folder with the shim's header as g++ takes it in, which is half the work of a kernel."""
        header = self._compile((SHIM / "metal.h").read_text(), ".gch", ["-x", "c++-header", "-w", *flags])
        folder = header.with_suffix("")
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "metal.h.gch").hardlink_to(header)
        return folder

    def _compile(self, source: str, ending: str, flags: list[str], objects: list[str] | None = None) -> Path:
        key = hashlib.sha256(repr((source, _headers(), flags)).encode()).hexdigest()[:24]
        out = self.cache / (key + ending)
        if out.exists():
            return out
        own = self.cache / f"{key}.{os.getpid()}"  # other test processes may be at the same text
        cpp = own.with_suffix(f".{os.getpid()}.cpp")
        cpp.write_text(source)
        command = ["g++", "-std=c++20", "-I", str(SHIM), *flags, str(cpp), *(objects or []), "-o", f"{own}.out"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        cpp.unlink()
        if run.returncode:
            raise KernelError(run.stderr)
        Path(f"{own}.out").replace(out)
        return out


@cache
def _built(builder: Builder, source: str) -> Path:
    """Whole replies run a few texts thousands of times: files are looked at once for each."""
    return builder._build(source)


@cache
def _headers() -> str:
    return "".join(path.read_text() for path in sorted(SHIM.rglob("*")) if path.is_file())
