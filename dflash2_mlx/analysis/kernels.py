"""What became of each of our own kernels in this process."""

from __future__ import annotations

from ..kernels._dispatch import KernelState, dispatcher


def kernel_states() -> list[KernelState]:
    """One entry per kernel: what was asked for, what runs, whether it was tested here, and why it is off.

    Raises:
        ConfigError: `DFLASH2_KERNELS` cannot be read.
    """
    return dispatcher().states()
