"""Settings as a page shows them: every key's label, form and range, and one model's values with where they come from.

Owns: the JSON that the settings window is built from, so that the page holds no second list. Decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..engine.setup import outlook
from ..models import registry
from ..models.discover import Discovery, LocalModel, local_config
from ..models.places import hub_cache
from ..models.pull import free_bytes
from ..settings.keys import KEYS, NOT_IN_PROFILES
from ..settings.names import Named, model_folders
from ..settings.profiles import is_modified, profile_values, profiles_of
from ..settings.resolve import Effective
from ..settings.schema import Key
from ..settings.store import ACTIVE_PROFILE, Settings
from .checks import DRAFT_MODEL, Pairing, look_at_pair, suggestions, target_source

MIB, GIB = 2**20, 2**30


def schema() -> list[dict[str, Any]]:
    """The groups in their order, each with its keys."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key in KEYS.values():
        groups.setdefault(key.group, []).append({
            "name": key.name, "label": key.label, "form": key.kind.form, "choices": list(key.kind.choices),
            "expected": key.kind.expected, "hint": key.hint, "use": key.use, "default": key.default,
            "default_text": typed(key, key.default), "ours": key.extra, "in_profiles": key.name not in NOT_IN_PROFILES,
        })  # fmt: skip
    return [{"group": group, "keys": keys} for group, keys in groups.items()]


def typed(key: Key, value: Any) -> str:
    """A value as somebody would type it; reading it again gives the same value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if key.kind.form == "size":
        for unit, scale in (("GiB", GIB), ("MiB", MIB)):
            if value % scale == 0:
                return f"{value // scale} {unit}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def base_object(settings: Settings) -> dict[str, Any]:
    """Which base folder this is, who shares it, and its default model."""
    return {
        "base_path": str(settings.base.folder),
        "base_path_origin": settings.base.origin,
        "shared_with_omlx": settings.of_omlx,
        "default_model": settings.default_model,
    }


def overview(settings: Settings) -> dict[str, Any]:
    """What holds for all models: folders, the default model, who shares the files."""
    return {
        **base_object(settings),
        "model_folders": [str(folder) for folder in model_folders(settings)],
        "hub_cache": str(hub_cache()),
        "free_bytes": free_bytes(hub_cache()),
        "configured": list(settings.models),
        "notes": list(settings.notes),
    }


def model_form(
    settings: Settings, named: Named, environment: Mapping[str, str], local: Discovery | None = None
) -> dict[str, Any]:
    """One model's settings, and what they lead to.

    Args:
        local: the models of this machine, to offer their drafters; None offers none.
    """
    effective, plan, notes = outlook(settings, named, environment)
    record = settings.record(named.model_id)
    inherited, _, _ = outlook(_without(settings, named), named, environment)
    own = {**record, **settings.extra(named.model_id)}
    values = {name: _value(key, effective, inherited, own) for name, key in KEYS.items()}
    drafter = effective[DRAFT_MODEL]
    pairing = look_at_pair(settings, named, drafter if isinstance(drafter, str) else None)
    return {
        "model": named.model_id,
        "name": named.typed,
        "known": named.known,
        "values": values,
        "problems": list(effective.problems),
        "notes": notes,
        "kept": {name: value for name, value in record.items() if name not in KEYS and name != ACTIVE_PROFILE},
        "pairing": pairing_object(pairing),
        "suggested": _suggested(settings, named),
        "drafters": [] if local is None else _drafters(settings, named, local),
        **profiles_object(settings, named),
        **plan_object(plan),
    }


def plan_object(plan: Any) -> dict[str, Any]:
    """What the settings lead to, in oMLX's words."""
    return {
        "target": plan.target, "drafter": plan.drafter, "dflash_requested": plan.requested,
        "dflash_fallback_reason": plan.fallback_reason,
    }  # fmt: skip


def pairing_object(pairing: Pairing) -> dict[str, Any]:
    return {"state": pairing.state, "text": pairing.text, "licence_note": pairing.licence_note}


def profiles_object(settings: Settings, named: Named) -> dict[str, Any]:
    """The profiles of a model, and which one is active."""
    record = settings.record(named.model_id)
    shown = []
    for name, profile in profiles_of(settings, named.model_id).items():
        held = profile_values(profile)
        lines = [
            {"name": key, "label": KEYS[key].label if key in KEYS else key,
             "text": typed(KEYS[key], value) if key in KEYS else json.dumps(value, ensure_ascii=False)}
            for key, value in held.items()
        ]  # fmt: skip
        api_name = profile.get("api_name") or name
        front = record.get("model_alias") or named.model_id
        shown.append({
            "name": name, "display_name": profile.get("display_name") or name, "updated_at": profile.get("updated_at"),
            "exposed": profile.get("expose_as_model") is True, "api_name": api_name,
            "served_as": f"{front}:{api_name}", "values": lines,
        })  # fmt: skip
    active = record.get(ACTIVE_PROFILE)
    return {"profiles": shown, "active_profile": active, "profile_modified": is_modified(settings, named.model_id)}


def _without(settings: Settings, named: Named) -> Settings:
    """The settings as if the model had none of its own."""
    models = {name: record for name, record in settings.models.items() if name != named.model_id}
    extras = {name: record for name, record in settings.extras.items() if name != named.model_id}
    kept = settings.extra(named.model_id).get("source")
    if kept is not None:
        extras[named.model_id] = {"source": kept}
    return replace(settings, models=models, extras=extras)


def _value(key: Key, effective: Effective, inherited: Effective, own: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "value": effective[key.name],
        "text": typed(key, effective[key.name]),
        "origin": effective.origin(key.name),
        "own": own.get(key.name) is not None,
        "inherited_text": typed(key, inherited[key.name]),
        "inherited_origin": inherited.origin(key.name),
    }


def _suggested(settings: Settings, named: Named) -> list[dict[str, Any]]:
    return [
        {"name": found.pair.drafter, "reason": found.reason, "here": local_config(found.pair.drafter) is not None,
         "licence_note": found.pair.licence_note(), "note": found.pair.note}
        for found in suggestions(settings, named)
    ]  # fmt: skip


def _drafters(settings: Settings, named: Named, local: Discovery) -> list[dict[str, Any]]:
    """The drafters of this machine, those that fit first."""
    target = target_source(settings, named)
    found = [_drafter(settings, named, model) for model in local.models if model.facts.kind == "drafter"]
    if target == "mini":
        found.insert(0, {"name": "mini", "label": "mini (embedded)", "state": "good", "text": "the embedded pair"})
    order = {"good": 0, "unknown": 1, "bad": 2}
    return sorted(found, key=lambda item: (order.get(item["state"], 3), item["label"].lower()))


def _drafter(settings: Settings, named: Named, model: LocalModel) -> dict[str, Any]:
    pairing = look_at_pair(settings, named, model.name)
    known = registry.find_drafter(model.name)
    block = f", block {model.facts.block_size}" if model.facts.block_size else ""
    kind = model.facts.family or "drafter"
    return {"name": model.name, "label": f"{model.model_id} ({kind}{block})", "state": pairing.state,
            "text": pairing.text, "published": known is not None}  # fmt: skip
