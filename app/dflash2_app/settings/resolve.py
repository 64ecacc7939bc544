"""Where each value comes from: request, command line, environment, profile, model, global, default.

Owns: the order of precedence, with each value's origin, and the check of what stands in files. Pure apart from
`environment_values`, which reads the environment it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash2_mlx.sampling.fields import FIELDS, FORCED_KEY, GLOBAL_KEY

from ..errors import UsageError
from .keys import KEYS, NOT_IN_PROFILES
from .schema import BadValue
from .store import Settings

REQUEST, COMMAND_LINE, ENVIRONMENT, PROFILE = "request", "command line", "environment", "profile"
MODEL, GLOBAL, DEFAULT = "model", "global", "default"
ORDER = (REQUEST, COMMAND_LINE, ENVIRONMENT, PROFILE, MODEL, GLOBAL, DEFAULT)
FORCED = tuple(field.name for field in FIELDS if FORCED_KEY in field.settings)  # force_sampling takes these
GLOBAL_KEYS = (
    "max_context_window", "max_tokens", *(field.name for field in FIELDS if GLOBAL_KEY in field.settings)
)  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A setting's value and the level that gave it."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Effective:
    """The settings that count, by key. `problems` are values in files that were passed over, one line each."""

    values: Mapping[str, Value]
    problems: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def origin(self, name: str) -> str:
        return self.values[name].origin

    def given(self, name: str) -> bool:
        """Whether anybody set this key."""
        return self.origin(name) != DEFAULT

    def configured(self, name: str) -> bool:
        """Whether the files give this value."""
        return self.origin(name) in (PROFILE, MODEL, GLOBAL)

    def chosen_now(self, name: str) -> bool:
        """Whether it comes from this command or request, and not from what was configured earlier."""
        return self.origin(name) in (REQUEST, COMMAND_LINE)


def resolve(layers: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any] | None = None) -> Effective:
    """Settle every key.

    Args:
        layers: raw values by level of `ORDER`; null, and what the clean-up makes null, counts as absent.
        defaults: of this model or command, before those of `KEYS`.
    """
    values: dict[str, Value] = {}
    problems: list[str] = []
    forced = bool(_first(layers, "force_sampling", ORDER, [])[0])
    for name, key in KEYS.items():
        order = ORDER[1:] if forced and name in FORCED and _configured(layers, name) else ORDER
        value, origin = _first(layers, name, order, problems)
        if value is None:
            value = (defaults or {}).get(name, key.default)
        values[name] = Value(value, origin)
    return Effective(values, tuple(problems))


def _configured(layers: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    """Whether the files give this value, so that there is something to force."""
    return _first(layers, name, (PROFILE, MODEL, GLOBAL), [])[0] is not None


def _first(
    layers: Mapping[str, Mapping[str, Any]], name: str, order: tuple[str, ...], problems: list[str]
) -> tuple[Any, str]:
    for origin in order:
        raw = layers.get(origin, {}).get(name)
        try:
            value = KEYS[name].normalise(raw)
        except BadValue as error:
            problems.append(f"{name} ({origin}): {error}")
            continue
        if value is not None:
            return value, origin
    return None, DEFAULT


def model_layers(settings: Settings, model_id: str, profile: str | None = None) -> dict[str, Mapping[str, Any]]:
    """The levels that the files give for one model."""
    layers: dict[str, Mapping[str, Any]] = {
        MODEL: {**settings.record(model_id), **settings.extra(model_id)},
        GLOBAL: dict(_global_values(settings)),
    }
    if profile is not None:
        stored = settings.profiles[model_id][profile].get("settings")
        held = stored if isinstance(stored, Mapping) else {}
        layers[PROFILE] = {name: value for name, value in held.items() if name not in NOT_IN_PROFILES}
    return layers


def _global_values(settings: Settings) -> Iterator[tuple[str, Any]]:
    sampling = settings.shared.get("sampling")
    if isinstance(sampling, Mapping):
        yield from ((name, sampling[name]) for name in GLOBAL_KEYS if name in sampling)


def environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read `DFLASH2_…` variables.

    Raises:
        UsageError: naming the variable, what was received and what is expected.
    """
    values = {}
    for key in KEYS.values():
        if key.variable in environment and key.name not in ("is_default", "model_alias"):
            try:
                values[key.name] = key.parse(environment[key.variable])
            except BadValue as error:
                raise UsageError(f"{key.variable}: {error}") from None
    return values
