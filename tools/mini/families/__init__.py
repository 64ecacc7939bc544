"""The task families of the mini corpus, and how often each is drawn."""

from __future__ import annotations

from ..sample import Family
from .code import code
from .numbers import calculation, calendar, series, units, word_problem
from .talk import about, capitals, story
from .text import echo, extraction, lookup, rewriting, sorting, table
from .tools import tool_call

FAMILIES: dict[str, tuple[Family, float]] = {
    "calculation": (calculation, 3.0),
    "word problem": (word_problem, 3.0),
    "units": (units, 1.5),
    "calendar": (calendar, 1.5),
    "series": (series, 1.2),
    "sorting": (sorting, 2.5),
    "extraction": (extraction, 1.5),
    "table": (table, 1.0),
    "rewriting": (rewriting, 1.2),
    "code": (code, 2.5),
    "about": (about, 0.7),
    "capitals": (capitals, 0.7),
    "story": (story, 1.0),
    "tools": (tool_call, 0.8),
    "echo": (echo, 2.0),
    "lookup": (lookup, 1.5),
}
