"""`dflash2-mlx models info`: one model, from this machine and the Hub together."""

from __future__ import annotations

from typing import Any

from ..output import Output
from .models_options import DEFAULT_CONTEXT, BasePath, Context, Json, ModelName


def info(model: ModelName, context: Context = DEFAULT_CONTEXT, base_path: BasePath = None, json: Json = False) -> None:
    """Show one model: what it is, what it takes, and whether it fits this machine."""
    with Output() as out:
        out.status(f"looking for {model}")
        from ..manage.details import facts_of, look
        from ..models.discover import discover
        from ..models.places import find_places

        looked = look(model, discover(find_places(base_path)).find(model))
        for note in looked.notes:
            out.note(note)
        facts = facts_of(looked, context)
        if json:
            out.json(facts)
        else:
            _print_info(out, facts)


def _print_info(out: Output, facts: dict[str, Any]) -> None:
    from ..models.pull import gigabytes
    from .models_view import show_facts

    size, left = facts["size_bytes"], facts["download_bytes"]
    show_facts(
        out,
        [
            ("model", facts["name"]),
            ("kind", facts["kind"]),
            ("family", facts["family"]),
            ("weights", None if facts["kind"] in ("other", "unknown") else facts["quantization"] or "full"),
            ("context", facts["context_length"]),
            ("block size", facts["block_size"]),
            ("size", None if size is None else gigabytes(size)),
            ("to fetch", None if left is None else (gigabytes(left) if left else "nothing, it is here")),
            ("path", facts["path"]),
            ("licence", facts["license"]),
            ("gated", "its owner asks for an agreement before download" if facts["gated"] else None),
            ("updated", facts["updated"]),
            ("newer", "the Hub has a newer commit; `models pull` fetches it" if facts["newer_on_hub"] else None),
            ("drafter", facts["drafter"] and f"{facts['drafter']} ({facts['drafter_reason']})"),
            ("memory", facts["memory_text"]),
            ("problem", facts["problem"]),
        ],
    )
