"""Ctrl-C while a reply is written.

Owns: the handler of SIGINT for that time. The first press asks the reply to stop between two pieces, so that nothing is
left half done; a second one interrupts as usual, for a model that no longer answers.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether Ctrl-C was pressed."""

    pressed = False


@contextmanager
def interrupts_ask(wanted: bool = True) -> Iterator[Stop]:
    """Turn Ctrl-C into a question while the block runs; without `wanted` it interrupts as ever."""
    stop = Stop()
    if not wanted:
        yield stop
        return

    def press(number: int, frame: FrameType | None) -> None:
        if stop.pressed:
            raise KeyboardInterrupt
        stop.pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
