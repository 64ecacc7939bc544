"""What the chat page's controls need to know of a model: the values it starts with, and what its template can do."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..api.ask import THINKING_SWITCHES, thinks
from ..http import json_response
from ..served import Served
from ..service import Service

DRAWN = """temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed""".split()


class ChatModelApi:
    """One address; it loads nothing."""

    def __init__(self, service: Service):
        self._service = service

    def routes(self) -> list[Route]:
        return [Route("/api/chat-model/{name:path}", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """`loaded` false leaves everything else out: it is known once the model is in memory."""
        name = request.path_params["name"]
        served = self._service.pool.peek(name)
        return json_response({"id": name, "loaded": served is not None, **({} if served is None else describe(served))})


def describe(served: Served) -> dict[str, Any]:
    """The model's starting values and abilities."""
    sampling, template = served.defaults.sampling, served.template_text
    switch = next((word for word in THINKING_SWITCHES if word in template), None)
    return {
        "target": served.engine.target_name,
        "drafter": served.engine.drafter_name,
        "has_template": bool(served.tokenizer.has_chat_template),
        "thinks": thinks(served),
        "thinking_switch": switch,
        "thinking_default": None if switch is None else served.template_defaults.get(switch),
        "forced": sorted(served.forced_template),
        "forced_sampling": sorted(served.forced_sampling),
        "context_length": served.engine.context_length,
        "defaults": {
            **{item: getattr(sampling, item) for item in DRAWN},
            "max_tokens": served.defaults.max_tokens,
            "stop": list(served.defaults.stop),
        },
    }
