"""The same drafter without one of its parts.

Owns: how a part is left out at inference: without the selector each position takes its likeliest token, without the
convolution rows pass through as they are. Both are what a DFlash drafter does, so a variant is the same modules under a
config that asks for less; no arithmetic is added, and the loaded drafter stays as it is.

Reference: docs/dflash2.md 1, 11.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..device.runtime import owner
from ..drafters.dflash2.model import DraftModel
from ..engine import Engine

SELECTOR_OFF, CONV_OFF, BOTH_OFF = "selector off", "convolution off", "both off"


def ablations(engine: Engine) -> Mapping[str, Engine]:
    """Engines whose drafter lacks a part that the loaded one has; empty for a DFlash drafter."""
    drafter = engine.drafter
    if drafter is None:
        return {}
    conv, selector = drafter.config.conv_kernel_size is not None, drafter.config.selector_rank is not None
    wanted = {}
    if selector:
        wanted[SELECTOR_OFF] = (True, False)
    if conv:
        wanted[CONV_OFF] = (False, True)
    if conv and selector:
        wanted[BOTH_OFF] = (False, False)
    return {
        name: replace(engine, drafter=owner().call(partial(rebuilt, drafter, conv=with_conv, selector=with_selector)))
        for name, (with_conv, with_selector) in wanted.items()
    }


def rebuilt(drafter: DraftModel, *, conv: bool = True, selector: bool = True, prepare: bool = True) -> DraftModel:
    """A second drafter of the same modules, less what is not wanted; runs on the owner thread.

    Args:
        prepare: compile its passes, where those of `drafter` are.
    """
    config = drafter.config
    if not conv:
        config = replace(config, conv_kernel_size=None, conv_group_size=None)
    if not selector:
        config = replace(config, selector_rank=None)
    twin = DraftModel(config)
    twin.fc, twin.hidden_norm, twin.norm = drafter.fc, drafter.hidden_norm, drafter.norm
    if config.selector_rank is not None:
        twin.candidate_selector = drafter.candidate_selector
    for mine, theirs in zip(twin.layers, drafter.layers, strict=True):
        mine.self_attn, mine.mlp = theirs.self_attn, theirs.mlp
        mine.input_layernorm, mine.post_attention_layernorm = theirs.input_layernorm, theirs.post_attention_layernorm
        if config.conv_kernel_size is not None:
            mine.attention_conv, mine.mlp_conv = theirs.attention_conv, theirs.mlp_conv
    if prepare and drafter.prepared:
        twin.compile_for_inference()
    return twin
