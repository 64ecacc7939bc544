"""From a path or Hub id to an Engine, refusing wrong pairs before weights are read.

Owns: the order of things (the drafter's config and tensor headers and the target's config decide; only then are weights
read), dtype choices per back-end, and the Engine record.

Reference: DFlash 2 specification 2.4 (loader checks).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

from .checkpoint import find_config, find_files, read_config
from .chips import this_chip
from .cost_model import OwnKernels, predict, workload
from .costs import CostTable, PassCosts
from .drafter.config import DrafterConfig
from .drafter.model import DraftModel
from .drafter.window import narrow_view
from .embedded import MINI, MINI_DRAFTER, MINI_TARGET
from .errors import CheckpointError, ConfigError, SettingError
from .fingerprint import fingerprint, unique_fingerprint
from .kernels._dispatch import EXACT_ROWS, dispatcher
from .layout import on_cpu, store_for_device
from .memory import Precision
from .pairing import check_target_config, checked_drafter
from .row_layers import EXACT, FAST, check_exactness_word, refuse_exactness_early
from .runtime import owner
from .targets.base import Target
from .targets.registry import describe_quantization, make_target, text_config
from .weights import load_drafter_weights, read_headers

_DTYPES = ("auto", "bfloat16", "float32")
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")


@dataclass(frozen=True)
class Engine:
    """Loaded weights and tokenizer; never changed, shared by any number of sessions.

    `row_cost_note` is set where this back-end makes a row cost about the same alone or in a block, so that
    acceptance can be read but speed cannot. `exactness` is "fast" or "exact", as loaded. `target_config` is the
    target's parsed `config.json`. `fingerprint` is the same for the same files loaded in the same way. `costs` are
    measured when something first asks for them.
    """

    target: Target
    drafter: DraftModel | None
    tokenizer: TokenizerWrapper
    target_name: str
    drafter_name: str | None
    stop_token_ids: frozenset[int]
    row_cost_note: str | None = None
    exactness: str = FAST
    target_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    fingerprint: str = field(default_factory=unique_fingerprint, repr=False)
    costs: CostTable = field(default_factory=CostTable, repr=False, compare=False)

    @property
    def block_size(self) -> int | None:
        """The drafter checkpoint's block size, anchor included."""
        return None if self.drafter is None else self.drafter.config.block_size

    @property
    def context_length(self) -> int | None:
        return self.target.spec.context_length


def load(
    target: str | Path = MINI,
    drafter: str | Path | None = None,
    *,
    draft_bits: int | None = None,
    draft_group_size: int = 64,
    target_dtype: str = "auto",
    drafter_dtype: str = "auto",
    draft_window: int | None = None,
    draft_sink: int = 0,
    exactness: str = FAST,
) -> Engine:
    """Load a target and, if named, its drafter.

    Args:
        target: folder, Hub id, or "mini" for the embedded pair (which brings its own drafter).
        drafter: folder or Hub id; None decodes plainly.
        draft_bits: quantize the drafter's matrices on load, 4 or 8; None keeps them.
        draft_group_size: 32, 64 or 128.
        target_dtype: "auto" keeps the checkpoint's weights (on MLX's CPU back-end with float32 activations,
            which is several times faster there); "bfloat16" casts; "float32" dequantizes.
        drafter_dtype: activations of the drafter, and its weights where they are not quantized: "auto" is bfloat16,
            but float32 on MLX's CPU back-end and for quantized drafters on M1 and M2.
        draft_window: positions the drafter sees, block_size up to the checkpoint's window; None keeps that.
        draft_sink: first positions of the sequence that it sees besides, at most as many as its window.
        exactness: "fast" computes each number of rows in the quickest way; "exact" runs linear layers, attention and
            gated-delta layers of the target by kernels in which a row's result does not depend on the rows beside it
            (quantized targets, on Metal; passes of up to 32 rows).
    Raises:
        CheckpointError, ConfigError, PairError, UnsupportedModelError: one line each.
    """
    _check_dtype("target_dtype", target_dtype)
    _check_dtype("drafter_dtype", drafter_dtype)
    exact = check_exactness_word(exactness)
    mini = str(target) == MINI
    if drafter is None and not mini:
        _refuse(draft_bits=draft_bits, draft_window=draft_window, draft_sink=draft_sink or None)
    source = MINI_TARGET if mini else target
    draft_source, drafter_name = _drafter_source(drafter, mini)

    config = read_config(find_config(source))
    check_target_config(config)
    if exact:
        refuse_exactness_early(describe_quantization(config) is not None, target_dtype == "float32")
    draft = None
    if draft_source is not None:
        draft = _checked_files(
            draft_source, config, exactness, draft_bits, draft_group_size, draft_window, draft_sink, drafter_dtype
        )
    folder = find_files(source)
    read_headers(folder)
    tokenizer = _load_tokenizer(folder, config)

    # Downloads stay in the caller's thread (Ctrl-C ends them); only MLX's work moves to its owner.
    target_model, draft_model = owner().call(lambda: _read_weights(folder, config, target_dtype, draft, exact))
    how: tuple[object, ...] = (target_dtype, drafter_dtype, draft_bits, draft_group_size, draft_window, draft_sink)
    if exact:
        how = (*how, exactness)
    held = load_precision(
        draft_bits=draft_bits, draft_group_size=draft_group_size, target_dtype=target_dtype, drafter_dtype=drafter_dtype
    )
    return Engine(
        target=target_model,
        drafter=draft_model,
        tokenizer=tokenizer,
        target_name=MINI if mini else str(target),
        drafter_name=drafter_name,
        stop_token_ids=frozenset(tokenizer.eos_token_ids),
        row_cost_note=_row_cost_note(describe_quantization(config), target_dtype),
        exactness=exactness,
        target_config=config,
        fingerprint=fingerprint([folder, *([draft.folder] if draft else [])], (*how, str(mx.default_device()))),
        costs=CostTable(prior=None if draft_model is None else prior_costs(config, draft_model.config, held)),
    )


@dataclass(frozen=True)
class _DrafterFiles:
    """A drafter that was checked and is to be read, and how."""

    folder: Path
    config: DrafterConfig
    bits: int | None = None
    group_size: int = 64
    dtype: str = "auto"

    def read(self, lender: Target | None = None) -> DraftModel:
        """The model; with a lender it is ready to draft for it. To be called in the owner's thread."""
        quantized = self.bits is not None or bool(self.config.quantization)
        model = load_drafter_weights(
            self.folder,
            self.config,
            dtype=_drafter_dtype(self.dtype, quantized=quantized),
            draft_bits=self.bits,
            group_size=self.group_size,
        )
        if lender is not None:
            model.warm_up(lender)
            _warm_up_target(lender, self.config.block_size)
        return model


def _checked_files(
    source: str | Path,
    target_config: Mapping[str, Any],
    exactness: str,
    bits: int | None,
    group_size: int,
    window: int | None = None,
    sink: int = 0,
    dtype: str = "auto",
) -> _DrafterFiles:
    """A drafter's files, once it fits the target and sees what it should."""
    folder, config = checked_drafter(source, target_config, bits, group_size)
    config = narrow_view(config, window, sink)
    _check_rows(exactness, config)
    return _DrafterFiles(folder, config, bits, group_size, dtype)


def _warm_up_target(target: Target, rows: int) -> None:
    """Verify twice, as for `DraftModel.warm_up`; the second pass begins where the first one kept a part."""
    if dispatcher().factory is None:
        return
    state = target.new_state()
    for _ in range(2):
        logits = target.forward(mx.zeros((1, rows), dtype=mx.int32), state).logits
        target.commit(state, mx.array([1], dtype=mx.int32))
        mx.eval(logits)


def _drafter_source(drafter: str | Path | None, mini: bool) -> tuple[str | Path | None, str | None]:
    """Where a drafter lies and what it is called; the embedded pair brings its own."""
    if str(drafter) == MINI or (mini and drafter is None):
        return MINI_DRAFTER, MINI
    return drafter, None if drafter is None else str(drafter)


def _read_weights(
    folder: Path, config: Mapping[str, Any], target_dtype: str, draft: _DrafterFiles | None, exact: bool
) -> tuple[Target, DraftModel | None]:
    target = make_target(_load_target(folder, target_dtype), config, exact=exact)
    drafter = None if draft is None else draft.read(target)
    if exact:  # then single rows have a kernel too, and it is compiled now
        mx.eval(target.forward(mx.zeros((1, 1), dtype=mx.int32), target.new_state()).logits)
    return target, drafter


def with_drafter(
    engine: Engine, drafter: str | Path, *, draft_bits: int | None = None, draft_group_size: int = 64
) -> Engine:
    """The same target with another drafter, for a comparison; arguments as in `load`.

    Raises:
        CheckpointError, ConfigError, PairError: one line each.
    """
    source = MINI_DRAFTER if str(drafter) == MINI else drafter
    files = _checked_files(source, engine.target_config, engine.exactness, draft_bits, draft_group_size)
    model = owner().call(lambda: files.read(engine.target))
    # What was measured, and what is kept under the fingerprint, belongs to the other drafter.
    return replace(
        engine, drafter=model, drafter_name=str(drafter), costs=CostTable(), fingerprint=unique_fingerprint()
    )


def prior_costs(config: Mapping[str, Any], drafter: DrafterConfig, held: Precision) -> PassCosts | None:
    """What passes should cost here by the cost model; None where it does not know the chip, or MLX uses no GPU."""
    if on_cpu() or not mx.metal.is_available():
        return None
    rows = range(1, drafter.block_size + 1)
    return predict(workload(config, drafter, held), this_chip(), own_kernels(), rows)


def own_kernels() -> OwnKernels:
    """Which few-row kernels of ours may run in this process."""
    runs = dispatcher().wants_metal
    return OwnKernels(
        linear=runs("qmm_rows"), attention=runs("few_row_attention"), recurrent=runs("gated_delta_verify")
    )


def _check_rows(exactness: str, config: DrafterConfig) -> None:
    """Exactness covers passes up to a number of rows."""
    if exactness == EXACT and config.block_size > EXACT_ROWS:
        raise SettingError(
            f"exactness: got 'exact', expected 'fast': the drafter's block_size is {config.block_size}, "
            f"more than {EXACT_ROWS} rows"
        )


def _refuse(**settings: object) -> None:
    """Settings of a drafter that is not there."""
    for name, value in settings.items():
        if value is not None:
            raise SettingError(f"{name}: got {value!r}, expected none: no drafter is given")


def load_drafter(
    path: str | Path, *, draft_bits: int | None = None, draft_group_size: int = 64, dtype: str = "auto"
) -> DraftModel:
    """Load a drafter alone, for instance to inspect or measure it.

    Raises:
        CheckpointError, ConfigError: one line each.
    """
    _check_dtype("dtype", dtype)
    folder = find_files(path, "drafter")
    config = DrafterConfig.from_dict(read_config(folder))
    return owner().call(_DrafterFiles(folder, config, draft_bits, draft_group_size, dtype).read)


def _load_target(folder: Path, target_dtype: str) -> Any:
    try:
        model, _ = load_model(folder, lazy=True)
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        line = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: got weights mlx-lm refuses ({line[:300]}), expected a complete checkpoint"
        ) from None
    if target_dtype == "float32" or (target_dtype == "auto" and on_cpu()):
        # Scales and biases too: 4-bit weights then run with float32 activations, and dequantize without rounding.
        model.set_dtype(mx.float32)
        if target_dtype == "float32":
            model = dequantize_model(model)
    elif target_dtype == "bfloat16":
        _cast_model(model, mx.bfloat16)
    store_for_device(model)
    _check_finite(model, folder)
    return model


def _check_finite(model: Any, folder: Path) -> None:
    """Refuse vectors (norms, biases, scales of decay) with numbers that would spoil every token; reads little."""
    vectors: Any = tree_flatten(model.parameters())
    small = {name: array for name, array in vectors if array.ndim == 1 and mx.issubdtype(array.dtype, mx.floating)}
    fine = {name: mx.isfinite(array).all() for name, array in small.items()}
    mx.eval(list(fine.values()))
    for name, good in fine.items():
        if not good.item():
            raise CheckpointError(f"{folder}: got a number that is not finite in {name}, expected finite weights")


def _cast_model(model: Any, dtype: mx.Dtype) -> None:
    """Cast all but the decay of gated-delta layers, which mlx-lm keeps in float32 as well."""

    def cast(path: str, array: mx.array) -> mx.array:
        if path.endswith("A_log") or not mx.issubdtype(array.dtype, mx.floating):
            return array
        return array.astype(dtype)

    model.update(tree_map_with_path(cast, model.parameters()))


def _check_dtype(name: str, wanted: str) -> None:
    if wanted not in _DTYPES:
        raise ConfigError(f"{name}: got {wanted!r}, expected auto, bfloat16 or float32")


def _drafter_dtype(wanted: str, *, quantized: bool) -> mx.Dtype:
    """Activations of the drafter: never float16 (it overflows), float32 where bfloat16 is emulated."""
    if wanted != "auto":
        return {"bfloat16": mx.bfloat16, "float32": mx.float32}[wanted]
    if on_cpu():
        return mx.float32
    return mx.float32 if this_chip().emulates_bfloat16 and quantized else mx.bfloat16


def load_precision(
    *,
    draft_bits: int | None = None,
    draft_group_size: int = 64,
    target_dtype: str = "auto",
    drafter_dtype: str = "auto",
) -> Precision:
    """How `load` with these settings holds numbers on this machine, for `memory_estimate`."""
    single = target_dtype == "float32" or (target_dtype == "auto" and on_cpu())
    return Precision(
        target_bytes=mx.float32.size if single else mx.bfloat16.size,
        drafter_bytes=_drafter_dtype(drafter_dtype, quantized=draft_bits is not None).size,
        draft_bits=draft_bits,
        draft_group_size=draft_group_size,
        dequantized=target_dtype == "float32",
    )


def _load_tokenizer(folder: Path, config: Mapping[str, Any]) -> TokenizerWrapper:
    stops = _stop_ids(folder, config)
    # Without these, transformers makes an empty tokenizer of the config's class and says nothing.
    if not any((folder / name).is_file() for name in _VOCABULARIES) and not any(folder.glob("*.tiktoken")):
        raise CheckpointError(f"{folder}: got no tokenizer files, expected one of {', '.join(_VOCABULARIES)}")
    try:
        return load_tokenizer(folder, eos_token_ids=stops)
    except Exception as error:  # noqa: BLE001 - the tokenizers package raises plain Exception
        line = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder}: got tokenizer files that do not load ({line[:300]}), expected the target's tokenizer"
        ) from None


def _stop_ids(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """Stop tokens: generation_config.json first, then config.json; the tokenizer adds its own."""
    stops = config.get("eos_token_id")
    if stops is None:
        stops = text_config(config).get("eos_token_id")
    generation = folder / "generation_config.json"
    if generation.is_file():
        try:
            stated = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
            stops = stops if stated is None else stated
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{generation}: got an unreadable file ({error}), expected JSON") from None
    if stops is None:
        return []
    return [stops] if isinstance(stops, int) else list(stops)


def _row_cost_note(quantization: str | None, target_dtype: str) -> str | None:
    if not on_cpu():
        return None
    if quantization is not None and target_dtype != "float32":
        return (
            f"on MLX's CPU back-end a block of {quantization} rows costs about as much as they do one by one: "
            "read acceptance, not speed"
        )
    if "openblas" not in os.environ.get("LD_PRELOAD", ""):
        return (
            "with MLX's own CPU matmul a block of rows costs about as much as they do one by one: "
            "read acceptance, not speed"
        )
    return None
