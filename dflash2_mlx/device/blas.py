"""Which BLAS multiplies matrices on MLX's CPU back-end, on Linux.

MLX's wheel for Linux links the reference BLAS, for which a block of rows costs as much as its rows one by one.
`libmlx` imports three functions of a BLAS, `cblas_sgemm`, `cblas_dgemm` and `cblas_cgemm`. The dynamic linker takes
them from whatever offered them to the whole process first, so a fast BLAS is loaded before `mlx.core` is.

The package scipy-openblas32 has one, under names that begin with `scipy_`. A library of three functions that hand
their arguments on is compiled once, with the g++ that MLX's CPU back-end needs anyway, and kept in the user's cache.

All this is done when MLX is asked for: what needs none of it, such as a command's help, does not wait for a compiler.

Imports no MLX. Elsewhere than on Linux nothing is done.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ConfigError

VARIABLE = "DFLASH2_BLAS"
OFF = "off"

_PACKAGE = "scipy_openblas32"
_PREFIX = "scipy_"  # of the package's names
_GEMMS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
_COMPILE_LIMIT_S = 60
_FORWARD = """
typedef void (*Sgemm)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
typedef void (*Dgemm)(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*,
                      int);
typedef void (*Cgemm)(int, int, int, int, int, int, const void*, const void*, int, const void*, int, const void*, void*,
                      int);
static Sgemm sgemm;
static Dgemm dgemm;
static Cgemm cgemm;
extern "C" {
void dflash2_forward_to(void* s, void* d, void* c) { sgemm = (Sgemm)s; dgemm = (Dgemm)d; cgemm = (Cgemm)c; }
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) {
    sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc) {
    dgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void cblas_cgemm(int order, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int lda,
                 const void* b, int ldb, const void* beta, void* c, int ldc) {
    cgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
"""  # enumerations of cblas.h are passed as int


@dataclass(frozen=True)
class Blas:
    """What MLX's products run on.

    Args:
        library: path of the library that was loaded for them; None where MLX keeps the one it came with.
        version: what the library says of itself; None where it says nothing.
        threads: of the library, where it was told; None leaves its own number.
        reason: why nothing was loaded; None where something was, or nothing had to be.
    """

    library: str | None = None
    version: str | None = None
    threads: int | None = None
    reason: str | None = None


@functools.cache
def load_blas() -> Blas:
    """Have MLX's products run on a fast BLAS; to be called before `mlx.core` is imported, later calls only report.

    `DFLASH2_BLAS` chooses: "off", or the path of a library with the names of cblas.h (or of scipy-openblas).
    """
    wanted = os.environ.get(VARIABLE, "")
    if sys.platform != "linux":
        return Blas()
    if wanted == OFF:
        return Blas(reason=f"{VARIABLE} is off")
    if "mlx.core" in sys.modules:
        return Blas(reason="mlx.core was imported before dflash2_mlx")
    if not wanted and _function(ctypes.CDLL(None), _GEMMS[0]) is not None:
        return Blas(reason="the process had a BLAS before: it was preloaded, or Python is linked to it")
    try:
        return _load(Path(wanted) if wanted else _package_library())
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        return Blas(reason=" ".join(str(error).split())[:300])


class _BeforeMlx(MetaPathFinder):
    """Asked for every module before Python looks for it; finds none, and takes the request for MLX as its sign."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "mlx.core":
            load_blas()


def load_before_mlx() -> None:
    """Have `load_blas` run when `mlx.core` is first imported, before it is, whoever imports it."""
    if sys.platform == "linux":
        sys.meta_path.insert(0, _BeforeMlx())


def checked_blas() -> Blas:
    """`load_blas`, where what `DFLASH2_BLAS` names could be loaded; importing never fails because of it.

    Raises:
        ConfigError: `DFLASH2_BLAS` names no such library.
    """
    found = load_blas()
    if found.library is None and os.environ.get(VARIABLE) not in (None, "", OFF) and sys.platform == "linux":
        raise ConfigError(f"{VARIABLE}: got {os.environ[VARIABLE]!r} ({found.reason}), expected off or a BLAS library")
    return found


def _load(path: Path) -> Blas:
    """Offer the library's three functions to the process.

    Raises:
        OSError: the library cannot be loaded, or what hands on to it cannot be made.
        AttributeError: it has no such functions.
    """
    library = ctypes.CDLL(str(path))
    prefix = _PREFIX if _function(library, _GEMMS[0]) is None else ""
    functions = [ctypes.cast(library[prefix + name], ctypes.c_void_p) for name in _GEMMS]
    if prefix:
        # The library itself stays private to us: other packages bring the same names in other versions.
        forward = ctypes.CDLL(str(_forwarding_library()), mode=ctypes.RTLD_GLOBAL)
        forward.dflash2_forward_to(*functions)
    else:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return Blas(str(path), _version(library, prefix), _limit_threads(library, prefix))


def _function(library: ctypes.CDLL, name: str) -> Any:
    """One of its functions; None where it has none of this name."""
    try:
        return library[name]
    except AttributeError:
        return None


def _limit_threads(library: ctypes.CDLL, prefix: str) -> int | None:
    """One thread on one or two cores: MLX's thread and the one that builds the next round have them already."""
    limit = _function(library, f"{prefix}openblas_set_num_threads")
    if limit is None or _cores() > 2 or "OPENBLAS_NUM_THREADS" in os.environ:
        return None
    limit(1)
    return 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _version(library: ctypes.CDLL, prefix: str) -> str | None:
    config = _function(library, f"{prefix}openblas_get_config")
    if config is None:
        return None
    config.restype = ctypes.c_char_p
    return " ".join(config().decode("ascii", "replace").split()[:2])


def _package_library() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise FileNotFoundError("the package scipy-openblas32 is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "lib"
    found = sorted(folder.glob("libscipy_openblas*.so"))
    if not found:
        raise FileNotFoundError(f"{folder}: no libscipy_openblas*.so there")
    return found[0]


def _forwarding_library() -> Path:
    """The compiled `_FORWARD`, from the cache or made now.

    Raises:
        OSError, subprocess.SubprocessError: there is no g++, or it fails, or the cache folder cannot be written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash2-mlx"
    key = hashlib.sha256((_FORWARD + platform.machine()).encode()).hexdigest()[:16]
    library = cache / f"blas-{key}.so"
    if library.is_file():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        made = Path(folder) / library.name
        command = ["g++", "-O2", "-fPIC", "-shared", "-x", "c++", "-", "-o", str(made)]
        done = subprocess.run(command, input=_FORWARD, text=True, capture_output=True, timeout=_COMPILE_LIMIT_S)
        if done.returncode:
            raise OSError(f"g++ failed: {done.stderr.strip()[:200]}")
        made.replace(library)  # whole or not at all, whoever else does the same now
    return library
