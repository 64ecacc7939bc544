"""From a path or Hub id to an Engine, refusing wrong pairs before weights are read.

Owns: the order of things (the drafter's config and tensor headers and the target's config decide; only then are weights
read), and the Engine record.

Reference: docs/dflash2.md 2.4 (loader checks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .checkpoints.configs import check_target_config, checked_drafter
from .checkpoints.drafter_weights import load_drafter_weights
from .checkpoints.files import (
    MINI,
    MINI_DRAFTER,
    MINI_TARGET,
    find_config,
    find_files,
    fingerprint,
    read_config,
    unique_fingerprint,
)
from .checkpoints.headers import read_headers
from .checkpoints.precision import (
    FLOAT32,
    check_dtype,
    held_drafter,
    held_target,
    refuse_half_experts,
    row_cost_note,
    settle_target_dtype,
)
from .checkpoints.target_weights import read_target
from .checkpoints.tokenizer import read_tokenizer
from .decode.costs import CostTable
from .device.blas import checked_blas
from .device.runtime import owner
from .drafters.dflash2.config import DrafterConfig, narrow_view
from .drafters.dflash2.model import DraftModel
from .errors import SettingError
from .kernels.dispatch import EXACT_ROWS, dispatcher
from .layers.quantized import EXACT, FAST, check_exactness_word, refuse_exactness_early
from .targets.base import Target
from .targets.registry import describe_quantization, file_quantization, make_target


@dataclass(frozen=True)
class Engine:
    """Loaded weights and tokenizer; never changed, shared by any number of sessions.

    `row_cost_note` is set where this back-end makes a row cost about the same alone or in a block, so that
    acceptance can be read but speed cannot. `exactness` is "fast" or "exact", as loaded. `target_config` is the
    target's parsed `config.json`. `load_notices` are what loading decided that the reader of a reply should know, one
    line each. `fingerprint` is the same for the same files loaded in the same way. `costs` are measured when something
    first asks for them.
    """

    target: Target
    drafter: DraftModel | None
    tokenizer: TokenizerWrapper
    target_name: str
    drafter_name: str | None
    stop_token_ids: frozenset[int]
    row_cost_note: str | None = None
    exactness: str = FAST
    load_notices: tuple[str, ...] = ()
    target_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    fingerprint: str = field(default_factory=unique_fingerprint, repr=False)
    costs: CostTable = field(default_factory=CostTable, repr=False, compare=False)

    @property
    def block_size(self) -> int | None:
        """The drafter checkpoint's block size, anchor included."""
        return None if self.drafter is None else self.drafter.config.block_size

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and reply together that the target was made for; None where its config is silent."""
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
        target_dtype: "auto" keeps the checkpoint's weights, on MLX's CPU back-end with float32 activations, and there
            dequantizes where a fast BLAS makes blocks pay and half of the free memory holds the weights;
            "bfloat16" casts, which experts that are not quantized do not allow on that back-end; "float32" dequantizes.
        drafter_dtype: activations of the drafter, and its weights where they are not quantized: "auto" is bfloat16,
            but float32 on MLX's CPU back-end and for quantized drafters on M1 and M2.
        draft_window: positions the drafter sees, block_size up to the checkpoint's window; None keeps that.
        draft_sink: first positions of the sequence that it sees besides, at most as many as its window.
        exactness: "fast" computes each number of rows in the quickest way; "exact" runs linear layers, attention and
            gated-delta layers of the target by kernels in which a row's result does not depend on the rows beside it
            (quantized targets, on Metal; passes of up to 32 rows).
    Raises:
        CheckpointError, ConfigError, PairError, SettingError, UnsupportedModelError: one line each.
    """
    check_dtype("target_dtype", target_dtype)
    how = _DrafterSettings(draft_bits, draft_group_size, drafter_dtype, draft_window, draft_sink)
    return _checked_pair(target, drafter, target_dtype, exactness, how).load()


@dataclass(frozen=True)
class _DrafterSettings:
    """How a drafter is held and what it sees; fields as the arguments of `load`."""

    bits: int | None = None
    group_size: int = 64
    dtype: str = "auto"
    window: int | None = None
    sink: int = 0

    def __post_init__(self) -> None:
        check_dtype("drafter_dtype", self.dtype)

    def refuse(self) -> None:
        """What was asked of a drafter that is not there."""
        asked = {"draft_bits": self.bits, "draft_window": self.window, "draft_sink": self.sink or None}
        for name, value in asked.items():
            if value is not None:
                raise SettingError(f"{name}: got {value!r}, expected none: no drafter is given")


@dataclass(frozen=True)
class _DrafterFiles:
    """A drafter that was checked and is to be read, and how."""

    folder: Path
    config: DrafterConfig
    how: _DrafterSettings

    def read(self, lender: Target | None = None) -> DraftModel:
        """The model; with a lender it is ready to draft for it. To be called in the owner's thread."""
        quantized = self.how.bits is not None or bool(self.config.quantization)
        model = load_drafter_weights(
            self.folder,
            self.config,
            dtype=held_drafter(self.how.dtype, quantized=quantized),
            draft_bits=self.how.bits,
            group_size=self.how.group_size,
        )
        if lender is not None:
            model.warm_up(lender)
            _warm_up_target(lender, self.config.block_size)
        return model


@dataclass(frozen=True)
class _PairFiles:
    """A target, with or without a drafter, whose configs were checked; weights are not read yet."""

    target_name: str
    source: str | Path
    config: Mapping[str, Any]
    target_dtype: str  # as settled
    notices: tuple[str, ...]
    exactness: str
    how: _DrafterSettings
    drafter_name: str | None
    draft: _DrafterFiles | None

    def load(self) -> Engine:
        """Fetch what is missing, then read."""
        folder = find_files(self.source)
        read_headers(folder)
        tokenizer = read_tokenizer(folder, self.config)
        # Downloads stay in the caller's thread (Ctrl-C ends them); only MLX's work moves to its owner.
        target, drafter = owner().call(lambda: self._read(folder))
        return Engine(
            target=target,
            drafter=drafter,
            tokenizer=tokenizer,
            target_name=self.target_name,
            drafter_name=self.drafter_name,
            stop_token_ids=frozenset(tokenizer.eos_token_ids),
            row_cost_note=row_cost_note(describe_quantization(self.config), self.target_dtype),
            exactness=self.exactness,
            load_notices=self.notices,
            target_config=self.config,
            fingerprint=self._fingerprint(folder),
            costs=CostTable(),
        )

    def _read(self, folder: Path) -> tuple[Target, DraftModel | None]:
        exact = self.exactness == EXACT
        model = read_target(
            folder,
            held_target(self.target_dtype),
            dequantize=self.target_dtype == FLOAT32,
            quantization=file_quantization(self.config),
        )
        target = make_target(model, self.config, exact=exact)
        drafter = None if self.draft is None else self.draft.read(target)
        if exact:  # then single rows have a kernel too, and it is compiled now
            mx.eval(target.forward(mx.zeros((1, 1), dtype=mx.int32), target.new_state()).logits)
        return target, drafter

    def _fingerprint(self, folder: Path) -> str:
        how = self.how
        facts = (self.target_dtype, how.dtype, how.bits, how.group_size, how.window, how.sink)
        exact = (self.exactness,) if self.exactness == EXACT else ()
        folders = [folder] if self.draft is None else [folder, self.draft.folder]
        return fingerprint(folders, (*facts, *exact, str(mx.default_device())))


def _checked_pair(
    target: str | Path, drafter: str | Path | None, target_dtype: str, exactness: str, how: _DrafterSettings
) -> _PairFiles:
    """A pair whose parts belong together and can be held as asked for; of a Hub target only the config is fetched."""
    checked_blas()
    exact = check_exactness_word(exactness)
    mini = str(target) == MINI
    if drafter is None and not mini:
        how.refuse()
    source = MINI_TARGET if mini else target
    draft_source, drafter_name = _drafter_source(drafter, mini)
    config = read_config(find_config(source))
    check_target_config(config)
    if exact:
        refuse_exactness_early(describe_quantization(config) is not None, target_dtype == "float32")
    draft = None if draft_source is None else _checked_files(draft_source, config, exactness, how)
    name = MINI if mini else str(target)
    refuse_half_experts(target_dtype, config)
    # Exact passes are those of the quantized weights.
    settled, notice = (target_dtype, None) if exact else settle_target_dtype(target_dtype, config)
    notices = () if notice is None else (notice,)
    return _PairFiles(name, source, config, settled, notices, exactness, how, drafter_name, draft)


def _checked_files(
    source: str | Path, target_config: Mapping[str, Any], exactness: str, how: _DrafterSettings
) -> _DrafterFiles:
    """A drafter's files, once it fits the target and sees what it should."""
    folder, config = checked_drafter(source, target_config, how.bits, how.group_size)
    config = narrow_view(config, how.window, how.sink)
    if exactness == EXACT and config.block_size > EXACT_ROWS:
        raise SettingError(
            f"exactness: got 'exact', expected 'fast': the drafter's block_size is {config.block_size}, "
            f"more than {EXACT_ROWS} rows"
        )
    return _DrafterFiles(folder, config, how)


def _drafter_source(drafter: str | Path | None, mini: bool) -> tuple[str | Path | None, str | None]:
    """Where a drafter lies and what it is called; the embedded pair brings its own."""
    if str(drafter) == MINI or (mini and drafter is None):
        return MINI_DRAFTER, MINI
    return drafter, None if drafter is None else str(drafter)


def _warm_up_target(target: Target, rows: int) -> None:
    """Verify twice, as for `DraftModel.warm_up`; the second pass begins where the first one kept a part."""
    if dispatcher().factory is None:
        return
    state = target.new_state()
    for _ in range(2):
        logits = target.forward(mx.zeros((1, rows), dtype=mx.int32), state).logits
        target.commit(state, mx.array([1], dtype=mx.int32))
        mx.eval(logits)


def with_drafter(
    engine: Engine, drafter: str | Path, *, draft_bits: int | None = None, draft_group_size: int = 64
) -> Engine:
    """The same target with another drafter, for a comparison; arguments as in `load`.

    Raises:
        CheckpointError, ConfigError, PairError: one line each.
    """
    source = MINI_DRAFTER if str(drafter) == MINI else drafter
    how = _DrafterSettings(draft_bits, draft_group_size)
    files = _checked_files(source, engine.target_config, engine.exactness, how)
    model = owner().call(lambda: files.read(engine.target))
    # What was measured, and what is kept under the fingerprint, belongs to the other drafter.
    return replace(
        engine, drafter=model, drafter_name=str(drafter), costs=CostTable(), fingerprint=unique_fingerprint()
    )


def load_drafter(
    path: str | Path, *, draft_bits: int | None = None, draft_group_size: int = 64, dtype: str = "auto"
) -> DraftModel:
    """Load a drafter alone, for instance to inspect or measure it.

    Raises:
        CheckpointError, ConfigError: one line each.
    """
    check_dtype("dtype", dtype)
    folder = find_files(path, "drafter")
    config = DrafterConfig.from_dict(read_config(folder))
    return owner().call(_DrafterFiles(folder, config, _DrafterSettings(draft_bits, draft_group_size, dtype)).read)
