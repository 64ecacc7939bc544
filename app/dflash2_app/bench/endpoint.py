"""Asks an OpenAI-compatible server, and notes when its tokens come.

Owns: HTTP, the stream of events, and what a server tells of its speculative decoding. Every failure is one line that
says what was asked of which server and what came instead.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import AppError, UsageError
from .sets import Prompt

TIMEOUT_S = 600.0  # of silence, not of the whole reply
METRICS_TIMEOUT_S = 10.0
_KEY_HINT = "--api-key NAME names the environment variable that holds the key"
# Where servers put the text of a reply's piece; reasoning comes under two names.
_TEXTS = ("content", "reasoning_content", "reasoning", "text")


@dataclass(frozen=True)
class Answer:
    """One streamed reply. `acceptance_length` is the server's own word for this reply, None where it says nothing."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    first_token_s: float
    decode_s: float
    finish_reason: str
    acceptance_length: float | None
    acceptance_source: str | None


class Server:
    """One server and the model asked of it.

    Args:
        url: base address; `/v1` is added where there is no path.
        model: as the server names it; None takes its only one.
        key: sent as a bearer token.
    """

    def __init__(self, url: str, model: str | None, key: str | None = None):
        self.url = base_url(url)
        self._key = key
        self.model = model if model is not None else self._only_model()

    def ask(self, prompt: Prompt, options: Mapping[str, Any], *, chat: bool = True) -> Answer:
        """Send one prompt and read the stream to its end; with `chat` false the bare text is continued."""
        path = "/chat/completions" if chat else "/completions"
        what = {"messages": _messages(prompt)} if chat else {"prompt": prompt}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        began = time.perf_counter()
        with self._open(path, {"model": self.model, **what, **options, **stream}) as response:
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise self._problem(f"{path}: got {kind}, expected a stream of events (text/event-stream)")
            return self._read(response, began)

    def metrics(self) -> str:
        """The server's Prometheus page, empty where it has none."""
        parts = urlsplit(self.url)
        request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}/metrics", headers=self._headers())
        try:
            with urllib.request.urlopen(request, timeout=METRICS_TIMEOUT_S) as response:
                return str(response.read().decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException):
            return ""  # it is an extra, and most servers have none

    def _only_model(self) -> str:
        with self._open("/models", None) as response:
            try:
                names = [str(model["id"]) for model in json.load(response)["data"]]
            except (ValueError, KeyError, TypeError):
                raise self._problem("/models: got no list of models, expected --endpoint-model NAME") from None
        if len(names) != 1:
            some = ", ".join(names[:8]) or "none"
            raise self._problem(f"got {len(names)} models ({some}), expected --endpoint-model to name one")
        return names[0]

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _open(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers()}
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            hint = _KEY_HINT if error.code in (401, 403) else None
            raise self._problem(f"{path}: got HTTP {error.code} ({_said(error)}), expected 200", hint) from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
            raise self._problem(f"got no answer ({_reason(error)}), expected a running server") from None

    def _read(self, response: Any, began: float) -> Answer:
        texts: list[str] = []
        first = last = 0.0
        usage: Mapping[str, Any] = {}
        told: dict[str, Any] = {}
        finish = ""
        for event in self._events(response):
            if "error" in event:
                raise self._problem(f"got an error in the stream ({_message(event)}), expected a reply")
            now = time.perf_counter()
            usage = event.get("usage") or usage
            told |= {key: event[key] for key in ("timings", "meta_info") if isinstance(event.get(key), dict)}
            for choice in event.get("choices") or ():
                piece = _piece(choice)
                finish = choice.get("finish_reason") or finish
                if isinstance(choice.get("meta_info"), dict):
                    told["meta_info"] = choice["meta_info"]
                if piece:
                    texts.append(piece)
                    first, last = first or now, now
        tokens = usage.get("completion_tokens")
        if not isinstance(tokens, int):
            raise self._problem(
                "got a stream without usage, expected token counts at its end (stream_options.include_usage)"
            )
        if not first:
            raise self._problem(f"got a stream without text ({tokens} tokens), expected a reply")
        length, source = reported_acceptance(told, tokens)
        return Answer(
            "".join(texts), int(usage.get("prompt_tokens") or 0), tokens, first - began, last - first,
            finish or "unknown", length, source,
        )  # fmt: skip

    def _events(self, response: Any) -> Iterator[dict[str, Any]]:
        try:
            for raw in response:
                line = raw.decode("utf-8", "replace").strip()
                if not line.startswith("data:"):
                    continue
                payload = line.removeprefix("data:").strip()
                if payload == "[DONE]":
                    return
                event = json.loads(payload)
                if isinstance(event, dict):
                    yield event
        except ValueError:
            raise self._problem(f"got {line[:60]!r} in the stream, expected JSON") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(f"got a broken stream ({_reason(error)}), expected it to end") from None

    def _problem(self, text: str, hint: str | None = None) -> AppError:
        return AppError(f"--endpoint {self.url}: {text}", hint=hint)


def base_url(given: str) -> str:
    """The address that `/chat/completions` is appended to.

    Raises:
        UsageError: not an http or https address.
    """
    url = given.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--endpoint: got {given!r}, expected an address such as http://localhost:8000/v1")
    return url if parts.path.strip("/") else f"{url}/v1"


def reported_acceptance(told: Mapping[str, Any], tokens: int) -> tuple[float | None, str | None]:
    """Tokens per verify pass of one reply, from what the server told of it, and where that was found.

    llama.cpp counts drafts (`timings`), SGLang verify passes (`meta_info`). Both put the token of the prefill among
    the tokens and not among the passes, which is one token too many per reply.
    """
    timings, meta = told.get("timings") or {}, told.get("meta_info") or {}
    if timings.get("draft_n") and isinstance(timings.get("draft_n_accepted"), int):
        produced = timings.get("predicted_n") or tokens
        passes = produced - timings["draft_n_accepted"]
        if passes > 0:
            return produced / passes, "timings (llama.cpp)"
    if meta.get("spec_verify_ct"):
        return tokens / meta["spec_verify_ct"], "meta_info (SGLang)"
    return None, None


def _reason(error: Exception) -> str:
    """Why a connection failed, without Python's own words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return " ".join(str(cause).split()) or type(cause).__name__


def _messages(prompt: Prompt) -> list[Any]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _piece(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta") or choice
    return "".join(delta[name] for name in _TEXTS if isinstance(delta.get(name), str))


def _said(error: urllib.error.HTTPError) -> str:
    """What the body of an error response says, in one short line."""
    try:
        body = error.read(4000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return error.reason
    try:
        return _message(json.loads(body)) or error.reason
    except ValueError:
        return " ".join(body.split())[:200] or error.reason


def _message(body: Any) -> str:
    found = body
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return " ".join(str(found).split())[:200]
