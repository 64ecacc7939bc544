"""From effective settings to what will be loaded and how replies are made; decided before anything is read.

Owns: the meaning of every `dflash_*` key, and the wording of each fallback. Pure: no files, no library.
Invariant: a key that cannot be honoured leaves a reason or a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from .names import MINI
from .resolve import COMMAND_LINE, Effective

SIXTEEN, THIRTY_TWO = 16, 32


@dataclass(frozen=True)
class PrefixLimits:
    """What a prefix cache may take: entries and bytes in memory; a folder and bytes on disk, or None for none."""

    max_entries: int
    max_bytes: int
    disk_folder: Path | None
    disk_max_bytes: int


@dataclass(frozen=True)
class Plan:
    """What to load and how to decode.

    `drafter` None means plain decoding, and `fallback_reason` says why where drafting was asked for.
    `tune_folder` holds what tuning found, `tune` is whether it may go on in the background.
    `block_size` is the wanted one; `clamp` tells whether it may be cut to the checkpoint's (a configured value)
    or is an error beyond it (one of this command). `strict` means a drafter named just now: if it fails, so
    does the command.
    """

    target: str
    drafter: str | None
    requested: bool
    fallback_reason: str | None
    draft_bits: int | None
    draft_group_size: int
    activation_bits: int | None
    target_dtype: str
    exactness: str
    block_size: int | None
    clamp: bool
    verify_mode: str
    max_ctx: int | None
    max_context_window: int | None
    draft_window: int | None
    draft_sink: int
    prefix: PrefixLimits | None
    strict: bool
    notes: tuple[str, ...] = ()
    tune: bool = True
    tune_folder: Path | None = None


def make_plan(
    effective: Effective,
    target: str,
    *,
    ssd_folder: Path | None = None,
    tune_folder: Path | None = None,
) -> Plan:
    """Decide what the settings mean for one target.

    Raises:
        UsageError: the command line says how to hold or narrow a drafter, and there is none.
    """
    notes: list[str] = []
    drafter, reason = _drafter(effective, target)
    _check_typed_view(effective)
    strict = drafter is not None and effective.chosen_now("dflash_draft_model")
    bits = _draft_bits(effective, drafter, notes)
    mode = "off" if effective["dflash_verify_mode"] == "off" else "dflash"
    if drafter is not None:
        mode = _verify_mode(effective, notes)
    return Plan(
        target=target,
        drafter=drafter,
        requested=bool(effective["dflash_enabled"]),
        fallback_reason=reason,
        draft_bits=bits,
        draft_group_size=effective["dflash_draft_quant_group_size"],
        activation_bits=effective["dflash_draft_quant_activation_bits"] if bits is not None else None,
        target_dtype=effective["target_dtype"],
        exactness=effective["exactness"],
        block_size=effective["dflash_block_size"],
        clamp=not effective.chosen_now("dflash_block_size"),
        verify_mode=mode,
        max_ctx=effective["dflash_max_ctx"],
        max_context_window=effective["max_context_window"],
        draft_window=effective["dflash_draft_window_size"],
        draft_sink=effective["dflash_draft_sink_size"],
        prefix=_prefix(effective, ssd_folder, notes),
        strict=strict,
        notes=tuple(notes),
        tune=effective["tune"],
        tune_folder=tune_folder,
    )


def _drafter(effective: Effective, target: str) -> tuple[str | None, str | None]:
    """The drafter to load, or None and why there is none although one was asked for."""
    if not effective["dflash_enabled"]:
        return None, None
    name = effective["dflash_draft_model"] or (MINI if target == MINI else None)
    if name is None:
        return None, "DFlash is on, and no Draft Model is set"
    if effective["dflash_verify_mode"] == "off":
        return None, "Verify mode is off, which is plain decoding here"
    if effective["dflash_block_size"] == 1:
        return None, "Runtime block size is 1, which drafts nothing"
    return name, None


def _check_typed_view(effective: Effective) -> None:
    """A window or sink that was typed needs a drafter; a configured one waits for the day there is one."""
    if effective["dflash_enabled"]:
        return
    for name, option, what in (
        ("dflash_draft_window_size", "--draft-window", "to narrow"),
        ("dflash_draft_sink_size", "--draft-sink", "that it is for"),
    ):
        if effective[name] and effective.origin(name) == COMMAND_LINE:
            raise UsageError(f"{option}: got {effective[name]}, expected a --drafter {what}")


def _draft_bits(effective: Effective, drafter: str | None, notes: list[str]) -> int | None:
    bits, size = effective["dflash_draft_quant_weight_bits"], effective["dflash_draft_quant_group_size"]
    typed = effective.origin("dflash_draft_quant_enabled") == COMMAND_LINE
    if typed and not effective["dflash_enabled"]:
        raise UsageError(f"--draft-bits: got {bits}, expected a --drafter to quantize")
    if not effective["dflash_draft_quant_enabled"]:
        if effective.origin("dflash_draft_quant_group_size") == COMMAND_LINE:
            raise UsageError(f"--draft-group-size: got {size}, expected --draft-bits as well")
        return None
    if drafter is None:
        return None
    if bits == 2:
        notes.append("Weight Bits: 2 runs as 4: a drafter of 2-bit weights is not supported here")
        return 4
    return bits


def _verify_mode(effective: Effective, notes: list[str]) -> str:
    mode = effective["dflash_verify_mode"]
    if not effective.given("dflash_verify_mode") and not effective.configured("dflash_enabled"):
        return "dflash"  # a pair named just now, or the embedded one: no oMLX record whose silence means adaptive
    if mode == "ddtree":
        notes.append("Verify mode: ddtree runs as dflash here: it is not used with DFlash 2")
        return "dflash"
    return mode


def _prefix(effective: Effective, ssd_folder: Path | None, notes: list[str]) -> PrefixLimits | None:
    on_disk = effective["dflash_ssd_cache"]
    if not effective["dflash_in_memory_cache"]:
        if on_disk:
            notes.append("SSD cache: has no effect without the In-memory cache")
        return None
    if on_disk and ssd_folder is None:
        notes.append("SSD cache: has no effect: oMLX's settings.json names no cache.ssd_cache_dir")
    return PrefixLimits(
        max_entries=effective["dflash_in_memory_cache_max_entries"],
        max_bytes=effective["dflash_in_memory_cache_max_bytes"],
        disk_folder=ssd_folder if on_disk else None,
        disk_max_bytes=effective["dflash_ssd_cache_max_bytes"],
    )


def drafter_dtype(activation_bits: int | None, backend: str) -> tuple[str, str | None]:
    """The library's name for the drafter's activations, and a note where the wish cannot be met.

    Not set, the library picks by chip: float32 on M1 and M2, where bfloat16 is emulated, else bfloat16.
    """
    if activation_bits == THIRTY_TWO:
        return "float32", None
    if activation_bits == SIXTEEN:
        if backend == "cpu":
            return "auto", "Activation Bits: 16 runs as 32: MLX's CPU back-end is several times slower with bfloat16"
        return "bfloat16", None
    return "auto", None


def usable_block_size(plan: Plan, checkpoint: int | None) -> tuple[int | None, str | None]:
    """The block size to decode with, and a note when the configured one was cut to the checkpoint's.

    A block size of this command that is too large is left alone: the library refuses it by name.
    """
    wanted = plan.block_size
    if wanted is None or checkpoint is None or wanted <= checkpoint or not plan.clamp:
        return wanted, None
    return checkpoint, f"Runtime block size: {wanted} was cut to {checkpoint}, the most this drafter was trained for"


def usable_view(plan: Plan, block_size: int, trained: int | None) -> tuple[int | None, int, list[str]]:
    """Draft window and sink to load with, and notes on what was cut to what the checkpoint allows.

    Args:
        block_size: of the checkpoint; a window holds at least a block.
        trained: the checkpoint's window, None when its layers see everything.
    """
    window, sink, notes = plan.draft_window, plan.draft_sink, []
    if window is not None:
        cut = max(window, block_size) if trained is None else min(max(window, block_size), trained)
        if cut != window:
            notes.append(f"Draft window size: {window} was made {cut}, what this drafter allows")
        window = cut
    limit = trained if window is None else window
    if sink and limit is None:
        notes.append(f"Draft sink size: {sink} has no effect: this drafter sees the whole context")
        sink = 0
    elif limit is not None and sink > limit:
        notes.append(f"Draft sink size: {sink} was cut to {limit}, the window")
        sink = limit
    return window, sink, notes


def plain_reason(plan: Plan, prompt_tokens: int) -> str | None:
    """Why one prompt is decoded plainly although the pair drafts, or None; never holds for the next prompt."""
    if plan.max_ctx is None or prompt_tokens < plan.max_ctx:
        return None
    return f"Max Context: the prompt has {prompt_tokens} tokens, drafting is for fewer than {plan.max_ctx}"
