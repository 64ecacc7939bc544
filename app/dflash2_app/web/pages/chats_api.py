"""Saved chats over HTTP: the same files that the terminal's `chat` keeps.

Owns: the addresses under /api/chats, and the strict reading of a chat that a client sends. Every write says which
revision it replaces; when the file holds another one, nothing is written and the client is told (409, "chat_changed").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dflash2_mlx.sampling.fields import SEED, SETTINGS

from ...chat.overview import Overview, summarise
from ...chat.record import Chat, to_markdown
from ...chat.settings import ReplySettings
from ...chat.store import ChangedElsewhere, ChatStore, NoSuchChat, NotSaved
from ...errors import AppError
from ..api.request import THINKING_SWITCHES, thinks
from ..http.errors import CONFLICT, NOT_FOUND, UNAVAILABLE, ApiError, from_library, refuse
from ..http.fields import Fields, parse_json
from ..http.wire import json_response, read_body
from ..serving.service import Service
from ..serving.source import Served

T = TypeVar("T")


MOST_BODY = 16 * 2**20  # bytes of one chat


MOST_MESSAGES, MOST_TITLE, MOST_SEARCH = 4096, 200, 200


CHANGED = "chat_changed"


# What a client may send; what is not there counts as empty.
CHAT_FIELDS = set(
    """version created_at updated_at model drafter title system settings template server messages""".split()
)


MESSAGE_FIELDS = set("role content reasoning_content partial finish_reason error numbers".split())


class ChatsApi:
    """Endpoints of the chats in the base folder."""

    def __init__(self, service: Service):
        body = min(service.limits.body_bytes, MOST_BODY)
        self._service, self._limits = service, replace(service.limits, body_bytes=body)
        self._overviews: dict[Path, Overview] = {}

    def routes(self) -> list[Route]:
        return [
            Route("/api/chats", self.list, methods=["GET"]),
            Route("/api/chats", self.create, methods=["POST"]),
            Route("/api/chats/{id}", self.read, methods=["GET"]),
            Route("/api/chats/{id}", self.save, methods=["PUT"]),
            Route("/api/chats/{id}", self.rename, methods=["PATCH"]),
            Route("/api/chats/{id}", self.delete, methods=["DELETE"]),
            Route("/api/chats/{id}/export", self.export, methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """All chats, the newest first; with `search`, those that hold all its words."""
        words = request.query_params.get("search", "")
        if len(words) > MOST_SEARCH:
            raise refuse("search", words, f"at most {MOST_SEARCH} characters")
        overview = self._overview()
        found = await _work(lambda: overview.search(words) if words.strip() else overview.summaries())
        return json_response({"chats": [asdict(one) for one in found]})

    async def create(self, request: Request) -> Response:
        """Save a new chat under a name of its own."""
        fields = await self._fields(request)
        sent = fields.take("chat")
        fields.finish()
        return json_response(await _work(lambda: self._create(sent)), 201)

    async def read(self, request: Request) -> Response:
        name, store = request.path_params["id"], self._store()
        chat, revision = await _work(lambda: store.read(name))
        return json_response({"id": name, "revision": revision, "chat": chat.to_dict(touch=False)})

    async def save(self, request: Request) -> Response:
        """Replace a chat that is there."""
        name, store = request.path_params["id"], self._store()
        fields = await self._fields(request)
        revision, sent = fields.required_text("revision"), fields.take("chat")
        fields.finish()

        def work() -> dict[str, Any]:
            chat = _read_chat(sent)
            return _told(name, chat, store.write(name, chat, replaces=revision))

        return json_response(await _work(work))

    async def rename(self, request: Request) -> Response:
        """Give a chat another title; an empty one lets its first question name it again.

        With `revision`, only that one is renamed: who goes on writing from an older one would lose what is newer.
        """
        name, store = request.path_params["id"], self._store()
        fields = await self._fields(request)
        title = fields.text("title")
        if title is None or len(title) > MOST_TITLE or any(ord(sign) < 32 for sign in title):
            raise refuse("title", title, f"a line of at most {MOST_TITLE} characters")
        expected = fields.text("revision")
        fields.finish()

        def work() -> dict[str, Any]:
            chat, revision = store.read(name)
            chat.title = title.strip()
            return _told(name, chat, store.write(name, chat, replaces=expected or revision))

        return json_response(await _work(work))

    async def delete(self, request: Request) -> Response:
        name, store = request.path_params["id"], self._store()
        await _work(lambda: store.delete(name))
        return json_response({"id": name, "deleted": True})

    async def export(self, request: Request) -> Response:
        """A chat as a file's name and text; `format` is "markdown" or "json"."""
        name, store = request.path_params["id"], self._store()
        form = request.query_params.get("format")
        if form not in ("markdown", "json"):
            raise refuse("format", form, "'markdown' or 'json'")
        if form == "json":
            await _work(lambda: store.load(name))  # only a chat leaves, whatever else the folder holds
            text = await _work(lambda: store.path(name).read_text(encoding="utf-8"))
            return json_response({"name": f"{name}.json", "type": "application/json", "text": text})
        text = await _work(lambda: to_markdown(store.load(name)))
        return json_response({"name": f"{name}.md", "type": "text/markdown", "text": text})

    def _store(self) -> ChatStore:
        try:
            return ChatStore(self._service.base().folder)
        except AppError as error:
            raise ApiError(str(error), status=UNAVAILABLE) from None

    def _overview(self) -> Overview:
        store = self._store()
        return self._overviews.setdefault(store.folder, Overview(store))

    async def _fields(self, request: Request) -> Fields:
        return Fields(parse_json(await read_body(request, self._limits)))

    def _create(self, sent: Any) -> dict[str, Any]:
        chat, store = _read_chat(sent), self._store()
        while True:
            name = store.fresh_name()
            try:
                return _told(name, chat, store.write(name, chat, replaces=None))
            except ChangedElsewhere:
                continue  # somebody else took that name a moment ago


def _told(name: str, chat: Chat, revision: str) -> dict[str, Any]:
    return {"id": name, "revision": revision, "summary": asdict(summarise(name, chat))}


def _read_chat(sent: Any) -> Chat:
    """A chat as a client sends it.

    Raises:
        ApiError, AppError: names what is wrong and where.
    """
    if not isinstance(sent, Mapping):
        raise refuse("chat", sent, "an object")
    _only(sent, CHAT_FIELDS, "chat")
    messages = sent.get("messages")
    if isinstance(messages, list):
        if len(messages) > MOST_MESSAGES:
            raise refuse("chat.messages", len(messages), f"at most {MOST_MESSAGES}")
        for at, message in enumerate(messages):
            if isinstance(message, Mapping):
                _only(message, MESSAGE_FIELDS, f"chat.messages[{at}]")
    chat = Chat.from_dict(sent)
    if len(chat.title) > MOST_TITLE:
        raise refuse("chat.title", chat.title, f"at most {MOST_TITLE} characters")
    ReplySettings.restored(chat.settings)  # the terminal goes on with this chat, so it must be able to read them
    return chat


def _only(sent: Mapping[str, Any], known: set[str], path: str) -> None:
    for name, value in sent.items():
        if name not in known:
            raise refuse(f"{path}.{name}", value, "no such field", code="unknown_parameter")


async def _work(work: Callable[[], T]) -> T:
    """Do file work in a thread.

    Raises:
        ApiError: whatever it refused, with the status that fits.
    """
    return await asyncio.to_thread(_guarded, work)


def _guarded(work: Callable[[], T]) -> T:
    import dflash2_mlx as d2

    try:
        return work()
    except NoSuchChat as error:
        raise ApiError(str(error), status=NOT_FOUND, param="id", code="chat_not_found") from None
    except ChangedElsewhere as error:
        raise ApiError(str(error), status=CONFLICT, param="revision", code=CHANGED) from None
    except NotSaved as error:
        raise ApiError(str(error), status=UNAVAILABLE) from None
    except (AppError, d2.Dflash2Error) as error:
        raise from_library(error) from None


DRAWN = (*SETTINGS, SEED.name)


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
