"""`dflash2-mlx convert`: a quantized copy of a drafter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import dflash2_mlx as d2

from ..console.output import Output
from ..errors import UsageError
from .options import valued
from .parsers import one_integer_of, path

_copy = valued("Copy")
MEGA = 10**6

Target = _copy("--output", "FOLDER", "Where the copy goes; must not exist yet", path)
Bits = _copy("--bits", "4|8", "Bits of a weight", one_integer_of(4, 8))
GroupSize = _copy("--group-size", "32|64|128", "Weights that share a scale", one_integer_of(32, 64, 128))


def convert(
    drafter: Annotated[str, typer.Argument(metavar="DRAFTER", help="A drafter: a folder or a Hub id")],
    output: Annotated[Path, Target],
    bits: Annotated[int, Bits] = 8,
    group_size: Annotated[int, GroupSize] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object", rich_help_panel="Output")] = False,
) -> None:
    """Quantize a drafter to a folder; convolution and selector keep their precision."""
    if not drafter:
        raise UsageError("drafter: got '', expected a folder or a Hub id")
    with Output() as out:
        out.status(f"quantizing {drafter}")
        done = d2.convert_drafter(drafter, output, bits=bits, group_size=group_size)
        if done.licence is None:
            out.note("the drafter states no licence: whether a copy may be passed on is for you to find out")
        if json:
            out.json({**asdict(done), "folder": str(done.folder)})
        else:
            out.data(_summary(done) + "\n")
        out.note(f"--drafter {done.folder} uses it, without --draft-bits")


def _summary(done: d2.Conversion) -> str:
    share = 100 * done.bytes_after / done.bytes_before
    return (
        f"{done.folder}: {done.bits}-bit, groups of {done.group_size} · {done.bytes_before / MEGA:.2f} MB before, "
        f"{done.bytes_after / MEGA:.2f} MB after ({share:.0f} %) · licence {done.licence or 'not stated'}"
    )
