"""How the server's log is written.

Owns: that no text of a client, a model or the Hub can move the cursor of whoever reads the log, or forge a line of it.
"""

from __future__ import annotations

import logging
import re

# Everything a terminal obeys, but for the line ends and tabs of tracebacks.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class PlainFormatter(logging.Formatter):
    """Writes control characters as what they are: `\\x1b` and its kind."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """A message is one line."""
        record.message = record.message.replace("\n", "\\n")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], super().format(record))
