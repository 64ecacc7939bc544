"""The BLAS that MLX's CPU back-end multiplies with on Linux: which is bound, what it computes, what is told of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dflash2_mlx as d2
from dflash2_mlx.checkpoints import precision
from dflash2_mlx.checkpoints.files import MINI_TARGET, read_config
from dflash2_mlx.device import blas

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS has a BLAS of its own")

# The package without its `__init__`: here `load_blas` is called.
ALONE = """
import sys, types
package = types.ModuleType("dflash2_mlx")
package.__path__ = ["dflash2_mlx"]
sys.modules["dflash2_mlx"] = package
"""
REPORT = """
import json, sys
from dflash2_mlx.device.blas import load_blas
found = load_blas()
print(json.dumps({"library": found.library, "reason": found.reason, "threads": found.threads}))
"""
PRODUCTS = """
import mlx.core as mx, numpy as np
rng = np.random.default_rng(3)
worst = 0.0
for kind in (np.float32, np.float64, np.complex64):
    for left in (False, True):
        for right in (False, True):
            a, b = rng.normal(size=(5, 7)), rng.normal(size=(7, 3))
            if kind is np.complex64:
                a, b = a + 1j * rng.normal(size=a.shape), b + 1j * rng.normal(size=b.shape)
            a, b = a.astype(kind), b.astype(kind)
            wide = mx.complex64 if kind is np.complex64 else mx.float64 if kind is np.float64 else mx.float32
            with mx.stream(mx.cpu):
                x = mx.array(a.T.copy(), wide).T if left else mx.array(a, wide)
                y = mx.array(b.T.copy(), wide).T if right else mx.array(b, wide)
                worst = max(worst, float(np.abs(np.array(x @ y) - a @ b).max()))
assert worst < 1e-5, worst
"""


def python(code: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own that starts with an empty cache folder."""
    kept = {name: value for name, value in os.environ.items() if name not in (blas.VARIABLE, "LD_PRELOAD")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**kept, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def report(cache: Path, before: str = "", **environment: str) -> dict[str, Any]:
    ran = python(before + ALONE + REPORT + PRODUCTS, cache, **environment)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_libmlx_binds_to_it(tmp_path: Path) -> None:
    """The dynamic linker itself says to which library it bound MLX's three imports."""
    linker = {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": str(tmp_path / "linker")}
    ran = python("import dflash2_mlx, mlx.core\n" + REPORT, tmp_path, **linker)
    lines = "\n".join(path.read_text(errors="replace") for path in tmp_path.glob("linker.*")).splitlines()
    for name in ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm"):
        (bound,) = [line for line in lines if f"`{name}'" in line and "libmlx.so" in line.split(" to ")[0]]
        assert str(tmp_path / "dflash2-mlx" / "blas-") in bound.split(" to ")[1]
    assert "scipy_openblas" in json.loads(ran.stdout)["library"]


@pytest.mark.parametrize(
    "first",
    [
        "import dflash2_mlx; import mlx.core",
        "import dflash2_mlx.device.runtime",
        "import dflash2_mlx.sampling.logits",
        "import dflash2_mlx as d2; d2.load",
    ],
)
def test_it_is_loaded_whoever_imports_mlx_first(tmp_path: Path, first: str) -> None:
    """Nobody calls `load_blas` here but Python itself, on its way to MLX."""
    called = "assert 'mlx.core' in sys.modules and load_blas.cache_info().currsize == 1\n"
    ran = python(first + "\n" + REPORT.replace("found =", called + "found ="), tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["library"] is not None


def test_importing_the_package_loads_and_compiles_nothing(tmp_path: Path) -> None:
    ran = python("import dflash2_mlx, sys\nassert 'mlx.core' not in sys.modules", tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert not list(tmp_path.iterdir())


def test_a_process_of_its_own_has_it_and_computes_the_same(tmp_path: Path) -> None:
    assert report(tmp_path)["library"] is not None
    assert report(tmp_path, PATH="")["library"] is not None, "compiled once: the second process needs no compiler"


def test_off(tmp_path: Path) -> None:
    assert report(tmp_path, DFLASH2_BLAS="off") == {"library": None, "reason": "DFLASH2_BLAS is off", "threads": None}
    assert not list(tmp_path.iterdir())


def test_a_path(tmp_path: Path) -> None:
    path = str(blas._package_library())
    assert report(tmp_path, DFLASH2_BLAS=path)["library"] == path


@pytest.mark.parametrize("path", ["/nowhere/libblas.so", "libm.so.6"])
def test_a_path_without_a_blas_is_refused_by_name(tmp_path: Path, path: str) -> None:
    ran = python("import dflash2_mlx as d2\ntry: d2.load('mini')\nexcept d2.ConfigError as e: print(e)", tmp_path,
                 DFLASH2_BLAS=path)  # fmt: skip
    assert ran.stdout.startswith(f"DFLASH2_BLAS: got '{path}' (") and ran.stdout.count("\n") == 1, ran.stderr


@pytest.mark.parametrize("fault", ["no compiler", "no cache folder", "no package", "MLX came first", "preloaded"])
def test_without_it_everything_goes_on_as_before(tmp_path: Path, fault: str) -> None:
    before, environment, cache = "", {}, tmp_path / "cache"
    if fault == "no compiler":
        environment["PATH"] = ""
        expected = "g++"
    elif fault == "no cache folder":
        cache.write_text("a file")
        expected = str(cache)
    elif fault == "no package":
        before = "import sys; sys.modules['scipy_openblas32'] = None\n"
        expected = "scipy-openblas32 is not installed"
    elif fault == "MLX came first":
        before, expected = "import mlx.core\n", "mlx.core was imported before"
    else:
        made = tmp_path / "preloaded.so"
        subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)], check=True, text=True,
                       input=REFERENCE)  # fmt: skip
        environment["LD_PRELOAD"], expected = str(made), "the process had a BLAS before"
    found = report(cache, before, **environment)
    assert found["library"] is None and expected in found["reason"]


REFERENCE = """
template <class T> void gemm(int ta, int tb, int m, int n, int k, T al, const T* a, int lda, const T* b, int ldb, T be,
                             T* c, int ldc) {
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            T sum = 0;
            for (int l = 0; l < k; ++l)
                sum += (ta == 112 ? a[l * lda + i] : a[i * lda + l]) * (tb == 112 ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = al * sum + (be == T(0) ? T(0) : be * c[i * ldc + j]);
        }
}
extern "C" {
void cblas_sgemm(int, int ta, int tb, int m, int n, int k, float al, const float* a, int lda, const float* b, int ldb,
                 float be, float* c, int ldc) { gemm<float>(ta, tb, m, n, k, al, a, lda, b, ldb, be, c, ldc); }
void cblas_dgemm(int, int ta, int tb, int m, int n, int k, double al, const double* a, int lda, const double* b,
                 int ldb, double be, double* c, int ldc) {
    gemm<double>(ta, tb, m, n, k, al, a, lda, b, ldb, be, c, ldc);
}
}
"""


def test_elsewhere_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.load_blas.__wrapped__() == blas.Blas()


@pytest.mark.parametrize(
    ("cores", "variable", "threads"), [(1, None, 1), (2, None, 1), (2, "2", None), (8, None, None)]
)
def test_threads(monkeypatch: pytest.MonkeyPatch, cores: int, variable: str | None, threads: int | None) -> None:
    """One thread where there are two cores, unless the user says how many."""

    class Library:
        told: int | None = None

        def __getitem__(self, name: str) -> Any:
            assert name == "scipy_openblas_set_num_threads"
            return lambda count: setattr(self, "told", count)

    monkeypatch.setattr(blas.os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", variable)
    library = Library()
    assert blas._limit_threads(library, "scipy_") == library.told == threads  # type: ignore[arg-type]


GIGA = 10**9


@pytest.mark.parametrize(
    ("fast", "free", "settled", "words"),
    [
        (True, 10 * GIGA, "float32", "4-bit group 64 unpacked to float32"),
        (True, GIGA // 20, "auto", "in float32 are more than half of the 0.1 GB of free memory"),
        (True, None, "float32", "unpacked to float32"),
        (False, 10 * GIGA, "auto", "there is no fast BLAS here"),
    ],
)
def test_what_auto_means(
    monkeypatch: pytest.MonkeyPatch, fast: bool, free: int | None, settled: str, words: str
) -> None:
    monkeypatch.setattr(precision, "fast_blas", lambda: fast)
    monkeypatch.setattr(precision, "system_memory", lambda field: {"MemAvailable": free}[field])
    config = read_config(MINI_TARGET)
    found, notice = precision.settle_target_dtype("auto", config)
    assert found == settled and notice is not None and words in notice
    assert precision.settle_target_dtype("float32", config) == ("float32", None), "who asks is told nothing"
    plain = {name: value for name, value in config.items() if not name.startswith("quantization")}
    assert precision.settle_target_dtype("auto", plain) == ("auto", None), "nothing to unpack, no choice"
    held = d2.load_precision(target_config=config)
    assert (held.dequantized, held.target_bytes) == (settled == "float32", 4)


@pytest.mark.parametrize("fast", [True, False])
def test_a_reply_says_which_it_was(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    monkeypatch.setattr(precision, "fast_blas", lambda: fast)
    engine = d2.load("mini")
    result = d2.generate(engine, "Convert 3 kilometres to metres.", d2.GenerationConfig(max_tokens=4))
    (notice,) = engine.load_notices
    assert notice in result.stats.notices and ("float32" in notice) == fast
    assert (engine.row_cost_note is None) == fast
    asked = d2.load("mini", target_dtype="float32" if fast else "bfloat16")
    assert (asked.fingerprint == engine.fingerprint) == fast, "what was settled counts, not what was asked"
    assert asked.load_notices == ()
