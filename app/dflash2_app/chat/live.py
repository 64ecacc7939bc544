"""The lines at the bottom of a terminal that are drawn again and again.

Owns: cursor movement, erasing, and what happens when the window changes. Knows nothing of what the lines say.
Invariants: what was committed above is never erased; one update is one write, and only lines that may have changed are
written, so that nothing flickers, also over a slow connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
# Terminals that know this hold back drawing until the update is whole; others ignore it.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
SETTLING_S = 0.25  # a border that is dragged sends many sizes
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"


class LiveRegion:
    """Draws lines below finished text and takes them away again.

    Args:
        write: puts text on the terminal.
        size: asks the terminal for its size.
        clock: seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], os.terminal_size],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._write, self._size, self._clock = write, size, clock
        self._drawn: list[str] = []
        self._columns = 0  # of the window as the live lines were drawn
        self._seen, self._changed = 0, -SETTLING_S

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the live lines, unless the window is just being resized; none may be wider than it."""
        columns = self._size().columns
        if columns != self._seen:
            self._seen, self._changed = columns, self._clock()
        if self._drawn and columns != self._columns and self._clock() - self._changed < SETTLING_S:
            return
        self.commit([], lines)

    def commit(self, finished: Sequence[str], lines: Sequence[str] = ()) -> None:
        """Put finished lines where the live ones stand, for good, and new live lines below them.

        Of live lines that are more than the window has, the last are shown.
        """
        size = self._size()
        shown = list(lines)[-max(1, size.lines - 1) :] if lines else []
        if not finished and shown == self._drawn and size.columns == self._columns:
            return
        parts = [_BEGIN, _HIDE, self._back()]
        parts += [f"{line}{_REST_OF_LINE}\n" for line in finished]
        parts.append("\n".join(f"{line}{_REST_OF_LINE}" for line in shown))
        if not shown:
            parts.append("\r" + _SHOW)
        parts += [_REST_OF_SCREEN, _END]
        self._drawn, self._columns = shown, size.columns
        self._write("".join(parts))

    def _back(self) -> str:
        """The way to the first live line.

        In a window that became narrower some terminals wrap what stands there. Then this is too short a way, and a
        piece of an old live line is left behind; it can never be too long, which would erase finished text.
        """
        up = len(self._drawn) - 1
        return "\r" + (f"\x1b[{up}A" if up > 0 else "")
