"""Models that come and go, health, and numbers."""

from __future__ import annotations

from collections.abc import Mapping

from ...settings.resolve import ORDER
from ..api.models import MOST_IDLE_S
from .schema import (
    Operation,
    Schema,
    anything,
    array,
    boolean,
    choice,
    integer,
    mapping,
    nullable,
    number,
    ref,
    reply,
    request,
    text,
)

UNKNOWN = {404: "No such model."}


def _status() -> Schema:
    return reply({
        "id": text("What lists call it: its alias, else its name."), "name": text(),
        "model_id": nullable(text("Its key in the settings files.")), "alias": nullable(text()),
        "profile": nullable(text("Of an exposed profile, the profile's name.")),
        "base": nullable(text("Of an exposed profile, the model it belongs to.")),
        "display_name": nullable(text()), "description": nullable(text()),
        "is_default": boolean(), "is_hidden": boolean(), "is_favorite": boolean(),
        "loaded": boolean(), "is_loading": boolean(), "pinned": boolean(),
        "requires_reload": boolean("Replies still run on what was configured before."),
        "ttl_seconds": nullable(number("Unloaded when idle for so long.")),
        "idle_seconds": nullable(number()), "active_requests": integer(low=0),
        "weight_bytes": nullable(integer("Target and drafter; null where it is not known.", 0)),
        "context_length": nullable(integer(low=0)), "block_size": nullable(integer(low=1)),
        "problem": nullable(text("Why it cannot be loaded.")),
        "settings": mapping(
            "The settings that count, by key.", additionalProperties=reply({"value": anything("In the key's own type."),
                                                                            "origin": choice(*ORDER)})),
        "notes": array(text(), "What is to be known of its settings."),
        "effective_engine": nullable(choice("plain", "dflash2", about="What runs; null before it is loaded.")),
        "dflash_requested": nullable(boolean()), "dflash_active": nullable(boolean()),
        "dflash_fallback_reason": nullable(text("Why DFlash is not active.")),
    })  # fmt: skip


def _model() -> Schema:
    return reply({
        "id": text(), "object": choice("model"), "created": integer(low=0), "owned_by": text(),
        "type": choice("model"), "display_name": text(), "created_at": text(),
    }, about="In OpenAI's form and Anthropic's.")  # fmt: skip


SCHEMAS: Mapping[str, Schema] = {
    "Model": _model(),
    "ModelStatus": _status(),
    "Refreshed": reply({name: array(text()) for name in (
        "added", "removed", "changed", "requires_reload", "auto_unloaded", "auto_reloaded")},
        about="What has changed, by model."),
    "Health": reply({"status": choice("ok", "stuck"), "version": text(), "running": integer(low=0),
                     "waiting": integer(low=0), "stuck_seconds": nullable(number())}),
}  # fmt: skip

_STATUS = ref("ModelStatus")
OPERATIONS = (
    Operation("get", "/v1/models", "listModels", "models", "The models one can ask", reply({
        "object": choice("list"), "data": array(ref("Model")), "has_more": choice(False),
        "first_id": nullable(text()), "last_id": nullable(text())})),
    Operation("get", "/v1/models/status", "listModelStatus", "models", "What is loaded, what drafts, and the line",
              reply({"models": array(_STATUS), "queue": reply({
                  "running": integer(low=0), "waiting": integer(low=0), "most_running": integer(low=0),
                  "most_waiting": integer(low=0)}),
                  "default_model": nullable(text()), "notes": array(text(), "On settings files and model folders."),
                  "left_out": mapping("Models that cannot be offered, and why.", additionalProperties=text())})),
    Operation("get", "/v1/models/{name}", "getModel", "models", "One model", ref("Model"), statuses=UNKNOWN),
    Operation("post", "/v1/models/{name}/load", "loadModel", "models", "Load a model now", _STATUS, request({}),
              body_needed=False, statuses={**UNKNOWN, 503: "It cannot be loaded, or no room can be made."}),
    Operation("post", "/v1/models/{name}/unload", "unloadModel", "models", "Drop a model from memory", _STATUS,
              request({}), body_needed=False, statuses={**UNKNOWN, 409: "It is in use."}),
    Operation("post", "/v1/models/{name}/reload", "reloadModel", "models", "Load a model anew where it is loaded",
              _STATUS, request({}), body_needed=False,
              statuses={**UNKNOWN, 503: "It cannot be loaded, or no room can be made."}),
    Operation("post", "/v1/models/refresh", "refreshModels", "models",
              "Look through the settings and the model folders again", ref("Refreshed"), request({}),
              body_needed=False),
    Operation("post", "/v1/models/{name}/settings", "changeModel", "models", "Pin a model, or limit its idle time",
              _STATUS, request({}, {"pinned": boolean(), "ttl_seconds": number("0 lifts the limit.", 0, MOST_IDLE_S)}),
              statuses=UNKNOWN),
    Operation("get", "/health", "health", "server", "Whether replies move", ref("Health"),
              statuses={503: "A reply stands still."}, replies={503: ref("Health")}),
    Operation("get", "/metrics", "metrics", "server", "Counters in Prometheus's text form", None,
              media="text/plain"),
    Operation("get", "/openapi.json", "describe", "server", "This description", mapping()),
)  # fmt: skip
