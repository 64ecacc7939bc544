"""Narrowing what a drafter sees of the context.

Owns: the rules for a window narrower than the checkpoint's, and for a sink. Both change only which context rows are
visible, so the text stays the target's; acceptance may change either way.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import SettingError
from .config import DrafterConfig


def narrow_view(config: DrafterConfig, window: int | None, sink: int) -> DrafterConfig:
    """The config of a drafter that sees less.

    Args:
        window: positions every layer sees, itself included, as `sliding_window`; None keeps the checkpoint's.
        sink: first positions of the sequence that stay visible besides.
    Raises:
        SettingError: a window narrower than a block or wider than what was trained, or a sink that is larger than the
            window or has nothing to add to.
    """
    trained = config.sliding_window
    if window is not None:
        at_most = "" if trained is None else f"..{trained} (the checkpoint's sliding_window)"
        expected = f"an integer in {config.block_size}{at_most}" if at_most else f"an integer >= {config.block_size}"
        if isinstance(window, bool) or not isinstance(window, int) or window < config.block_size:
            raise SettingError(f"draft_window: got {window!r}, expected {expected}")
        if trained is not None and window > trained:
            raise SettingError(f"draft_window: got {window!r}, expected {expected}")
        config = replace(config, sliding_window=window, layer_types=("sliding_attention",) * config.num_layers)
    if isinstance(sink, bool) or not isinstance(sink, int) or sink < 0:
        raise SettingError(f"draft_sink: got {sink!r}, expected an integer >= 0")
    if sink == 0:
        return config
    if config.context_window is None or config.sliding_window is None:
        raise SettingError(f"draft_sink: got {sink}, expected 0: the drafter sees the whole context (no draft_window)")
    if sink > config.sliding_window:
        raise SettingError(f"draft_sink: got {sink}, expected an integer in 0..{config.sliding_window} (the window)")
    return replace(config, sink=sink)
