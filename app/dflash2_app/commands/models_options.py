"""The options that the commands of `models` share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import valued
from .parsers import filled, integer, path

DEFAULT_CONTEXT = 8192  # models.memory's, which is not imported for --help

_BASE = "DFLASH2_BASE_PATH or ~/.dflash2-mlx"
_base_path = valued("Selection")("--base-path", "DIR", "Folder of settings and models", path, default=_BASE)
_context = valued("Output")("--context", "N", "Tokens of context the memory estimate is for", integer(1))

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object", rich_help_panel="Output")]
BasePath = Annotated[Path | None, _base_path]
Context = Annotated[int, _context]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A Hub id like owner/name", parser=filled)]
