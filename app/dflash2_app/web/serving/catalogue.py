"""Which models a server offers, by the settings files as they are now.

Owns: `Catalogue` (everything on this machine, or what the command line names, each with its exposed profiles) and
`ConfiguredSource` (one of them, ready to be loaded). Reads files and configs, never weights. Invariant: a settings file
that cannot be read while the server runs changes nothing: what was read before counts on, and the status says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dflash2_mlx.sampling.fields import SETTINGS

from ...engine.memory_fit import check_memory, weight_bytes
from ...engine.setup import Setup, prepare_named
from ...errors import AppError, UsageError, one_line
from ...models.discover import HUB, Discovery, LocalModel, discover, local_config
from ...models.places import Places, find_places
from ...settings.files import SettingsError
from ...settings.names import MINI, Named, exposed_profiles, find_model, source_of
from ...settings.paths import Base
from ...settings.resolve import COMMAND_LINE, Effective, environment_values
from ...settings.store import Settings, Store
from .source import Card, Served

log = logging.getLogger("dflash2.serve")
# What a request gets where nobody says anything: the values oMLX starts with.
SERVER_DEFAULTS = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 32768}
# Settings that the status shows, each with where it comes from.
_SHOWN = (
    "dflash_enabled", "dflash_draft_model", "dflash_draft_quant_weight_bits", "dflash_block_size", "dflash_verify_mode",
    "dflash_max_ctx", "max_context_window", "max_tokens", *SETTINGS, "force_sampling", "enable_thinking",
    "chat_template_kwargs", "forced_ct_kwargs",
)  # fmt: skip


@dataclass(frozen=True)
class ConfiguredSource:
    """A model with its settings; without a `setup` it cannot be loaded, and its card says why."""

    name: str
    card: Card
    setup: Setup | None
    weight_bytes: int | None = None

    @property
    def key(self) -> Hashable:
        return ("cannot be used", self.name) if self.setup is None else self.setup.load_key

    def check(self) -> None:
        check_memory(self._usable().plan, plain=False)

    def load(self) -> Served:
        return Served.of(self.name, self._usable().load(several=True))

    def view(self, served: Served) -> Served:
        return replace(served, name=self.name, pair=self._usable().over(served.pair.loaded))

    def _usable(self) -> Setup:
        if self.setup is None:
            raise AppError(self.card.problem or "its settings cannot be used")
        return self.setup


@dataclass(frozen=True)
class Offered:
    """What a catalogue offers, the default first.

    `left_out` says of models on this machine why they cannot be offered. With `fallback` a name nobody knows means the
    default model (oMLX's `model_fallback`).
    """

    sources: tuple[Any, ...]
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    fallback: bool = False


class Offers(Protocol):
    """What the pool asks of a catalogue."""

    offered: Offered

    def changed(self) -> bool:
        """Whether `read` might find something new; cheap."""

    def read(self, *, rescan: bool = False) -> Offered:
        """Look again; may take its time."""


@dataclass(frozen=True)
class Wanted:
    """A model of the command line: its name, what requests call it, and settings given for it by key."""

    typed: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)


class Catalogue:
    """The models of one base folder.

    Args:
        wanted: exactly these; none means everything on this machine.
        given: settings of the command line for all of them, by key.
        draft_bits: quantize drafters on load; None as configured.
        environment: of the process when not given.
    Raises:
        SettingsError: a settings file cannot be read, or a wanted model's settings cannot be used.
        UsageError: a value of the command line or the environment cannot be used.
    """

    def __init__(
        self,
        base: Base,
        *,
        wanted: Sequence[Wanted] = (),
        given: Mapping[str, Any] | None = None,
        draft_bits: int | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self._store = Store(base)
        self._wanted, self._given, self._draft_bits = tuple(wanted), dict(given or {}), draft_bits
        self._environment = dict(os.environ if environment is None else environment)
        environment_values(self._environment)  # a wrong variable is no fault of any one model
        self._found: tuple[Places, Discovery] | None = None
        self._weights: dict[Hashable, int | None] = {}
        self._seen: tuple[object, ...] | None = None
        self.offered = Offered(())
        self.offered = self.read()
        if self._wanted:
            self._require_usable()

    def changed(self) -> bool:
        return self._stamp() != self._seen

    def read(self, *, rescan: bool = False) -> Offered:
        """Read the settings again, with `rescan` the model folders as well.

        Raises:
            SettingsError: the first time only; later the offer stays as it was, with a note.
        """
        stamp = self._stamp()  # before reading: what changes meanwhile is seen the next time
        try:
            settings = self._store.load()
        except SettingsError as error:
            if self._seen is None:
                raise
            log.warning("%s", one_line(str(error)))
            kept = f"{one_line(str(error))}; the settings read before count on"
            self.offered = replace(self.offered, notes=(*_without_kept(self.offered.notes), kept))
        else:
            if rescan:
                self._weights.clear()
            self.offered = self._offer(settings, rescan=rescan)
        self._seen = stamp
        return self.offered

    def _stamp(self) -> tuple[object, ...]:
        """What tells an edit of the settings files; they are replaced, never written into, by us and by oMLX."""
        files = (self._store.models, self._store.profiles, self._store.extras, self._store.shared)
        return tuple(_file_stamp(file.path) for file in files)

    def _offer(self, settings: Settings, *, rescan: bool) -> Offered:
        left_out: dict[str, str] = {}
        notes = list(settings.notes)
        if self._wanted:
            bases = [(wanted.name, find_model(settings, wanted.typed), wanted.given) for wanted in self._wanted]
        else:
            found = self._discover(settings, rescan=rescan)
            notes += found.notes
            named = {**_local(settings, found, left_out), **_configured(settings, found, left_out)}
            bases = [(name, model, {}) for name, model in _in_order(settings, named, notes)]
        sources = [source for base in bases for source in self._with_profiles(settings, *base)]
        fallback = _section(settings, "model").get("model_fallback") is True
        return Offered(tuple(sources), tuple(notes), left_out, fallback)

    def _discover(self, settings: Settings, *, rescan: bool) -> Discovery:
        places = find_places(settings.base.folder)
        if rescan or self._found is None or self._found[0] != places:
            self._found = (places, discover(places))
        return self._found[1]

    def _with_profiles(
        self, settings: Settings, name: str, named: Named, given: Mapping[str, Any]
    ) -> Iterator[ConfiguredSource]:
        yield self._source(settings, name, named, given)
        if named.profile is None:
            for api_name, profile in exposed_profiles(settings, named.model_id).items():
                of = replace(named, profile=profile)
                yield self._source(settings, f"{name}:{api_name}", of, given, base=name)

    def _source(
        self, settings: Settings, name: str, named: Named, given: Mapping[str, Any], *, base: str | None = None
    ) -> ConfiguredSource:
        card = _card(settings, named, base)
        try:
            setup = self._setup(settings, named, {**self._given, **given})
        except AppError as error:
            return ConfiguredSource(name, replace(card, problem=one_line(str(error))), None)
        if setup.load_key not in self._weights:
            self._weights[setup.load_key] = weight_bytes(setup.plan)
        told = replace(
            card, ttl_s=setup.effective["ttl_seconds"] or card.ttl_s, dflash_requested=setup.plan.requested,
            notes=setup.notes, settings=_shown(setup),
        )  # fmt: skip
        return ConfiguredSource(name, told, setup, self._weights[setup.load_key])

    def _setup(self, settings: Settings, named: Named, given: Mapping[str, Any]) -> Setup:
        def prepared(values: Mapping[str, Any]) -> Setup:
            return prepare_named(
                settings, named, levels={COMMAND_LINE: values}, environment=self._environment, defaults=SERVER_DEFAULTS
            )

        setup = prepared(given)
        if self._draft_bits is None or not setup.drafts:
            return setup
        bits = {"dflash_draft_quant_enabled": True, "dflash_draft_quant_weight_bits": self._draft_bits}
        return prepared({**given, **bits})

    def _require_usable(self) -> None:
        """What the command line names has to work, or the command ends."""
        sources = self.offered.sources
        for source in sources:
            if source.card.base is None and source.card.problem is not None:
                raise SettingsError(source.card.problem)
        if self._draft_bits is not None and not any(source.setup and source.setup.drafts for source in sources):
            raise UsageError(f"--draft-bits: got {self._draft_bits}, expected a model with a drafter to quantize")


def _local(settings: Settings, found: Discovery, left_out: dict[str, str]) -> dict[str, Named]:
    """The targets that were found, by the name that requests use; drafters are no models of their own."""
    named: dict[str, Named] = {}
    ids: set[str] = set()
    for model in found.models:
        name = model.name if model.source == HUB else model.model_id
        reason = _unusable(model)
        if name == MINI or model.model_id in ids:
            reason = "another model goes by this name"
        if reason is not None:
            left_out.setdefault(name, reason)
            continue
        ids.add(model.model_id)
        named[name] = Named(model.model_id, model.name, model.model_id in settings.models)
    return named


def _unusable(model: LocalModel) -> str | None:
    if model.facts.kind == "drafter":
        return "it is a drafter: settings name it as a Draft Model"
    return model.problem


def _configured(settings: Settings, found: Discovery, left_out: dict[str, str]) -> dict[str, Named]:
    """Models with settings that no search finds: of other folders; what is not on this machine is left out."""
    named: dict[str, Named] = {}
    known = {model.model_id for model in found.models}
    for model_id in settings.models:
        if model_id in known or model_id == MINI:
            continue
        model = Named(model_id, model_id, True)
        try:
            target = source_of(settings, model)
        except AppError as error:
            left_out[model_id] = one_line(str(error))
            continue
        if local_config(target) is None:
            left_out[model_id] = f"it has settings, and is not on this machine: `dflash2-mlx models pull {target}`"
        else:
            named[model_id] = model
    return named


def _in_order(settings: Settings, named: dict[str, Named], notes: list[str]) -> list[tuple[str, Named]]:
    """The default first (the embedded pair where there is none), then favourites, then the others."""
    mini = Named(MINI, MINI, MINI in settings.models)
    default = settings.default_model or MINI
    if default not in {MINI, *(model.model_id for model in named.values())}:
        notes.append(f"the default model {default} cannot be offered: {MINI} is the default instead")
        default = MINI

    def rank(item: tuple[str, Named]) -> tuple[bool, bool, bool]:
        record = settings.record(item[1].model_id)
        return (item[1].model_id != default, record.get("is_favorite") is not True, item[0] == MINI)

    return sorted([*named.items(), (MINI, mini)], key=rank)


def _card(settings: Settings, named: Named, base: str | None) -> Card:
    """What the record says of the model itself; where a value is of the wrong kind, its problem is told elsewhere."""
    record = settings.record(named.model_id)

    def text(name: str) -> str | None:
        value = record.get(name)
        return value if isinstance(value, str) and value.strip() else None

    idle = _section(settings, "idle_timeout").get("idle_timeout_seconds")
    return Card(
        model_id=named.model_id,
        alias=text("model_alias"),
        profile=named.profile,
        base=base,
        is_hidden=record.get("is_hidden") is True,
        is_pinned=named.profile is None and record.get("is_pinned") is True,
        is_favorite=record.get("is_favorite") is True,
        ttl_s=idle if isinstance(idle, int) and not isinstance(idle, bool) and idle > 0 else None,
        display_name=text("display_name"),
        description=text("description"),
    )


def _shown(setup: Setup) -> dict[str, dict[str, Any]]:
    """The settings that count, with their origins; what the plan makes of a value is shown, not the bare value."""
    plan, effective = setup.plan, setup.effective
    planned = {
        "dflash_draft_model": plan.drafter, "dflash_draft_quant_weight_bits": plan.draft_bits,
        "dflash_verify_mode": plan.verify_mode,
    }  # fmt: skip
    return {name: _value(effective, name, planned) for name in _SHOWN}


def _value(effective: Effective, name: str, planned: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": planned.get(name, effective[name]), "origin": effective.origin(name)}


def _section(settings: Settings, name: str) -> Mapping[str, Any]:
    section = settings.shared.get(name)
    return section if isinstance(section, Mapping) else {}


def _without_kept(notes: Sequence[str]) -> list[str]:
    return [note for note in notes if not note.endswith("the settings read before count on")]


def _file_stamp(path: Path) -> object:
    try:
        state = path.stat()
    except OSError:
        return None
    return (state.st_ino, state.st_mtime_ns, state.st_size)
