"""Counts what the server does, as Prometheus text.

Owns: the names of the metrics. All methods belong to the event loop's thread. Knows no interface.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reply import Reply

HELP = {
    "dflash2_requests_total": ("counter", "HTTP requests, by path and status"),
    "dflash2_replies_total": ("counter", "Replies that ran, by model and finish reason"),
    "dflash2_reply_failures_total": ("counter", "Replies that failed half-way"),
    "dflash2_prompt_tokens_total": ("counter", "Tokens of prompts"),
    "dflash2_cached_tokens_total": ("counter", "Tokens of prompts that need not be read again"),
    "dflash2_generated_tokens_total": ("counter", "Tokens generated"),
    "dflash2_rounds_total": ("counter", "Rounds of drafting and verifying"),
    "dflash2_drafted_tokens_total": ("counter", "Tokens proposed"),
    "dflash2_accepted_tokens_total": ("counter", "Tokens proposed and accepted"),
    "dflash2_decode_seconds_total": ("counter", "Seconds of decoding"),
    "dflash2_prefill_seconds_total": ("counter", "Seconds of reading prompts"),
    "dflash2_queue_seconds_total": ("counter", "Seconds spent in line"),
    "dflash2_requests_running": ("gauge", "Replies that share the machine now"),
    "dflash2_requests_waiting": ("gauge", "Requests in line"),
    "dflash2_model_loaded": ("gauge", "1 for a model in memory"),
    "dflash2_model_dflash_active": ("gauge", "1 for a model in memory that drafts"),
}

_SUMMED = """replies prompt_tokens cached_tokens generated_tokens rounds drafted_tokens accepted_tokens decode_seconds
prefill_seconds queue_seconds""".split()  # of each model

_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, _Labels]] = Counter()

    def request(self, path: str, status: int) -> None:
        self._add("dflash2_requests_total", 1, path=path, status=str(status))

    def failed(self) -> None:
        self._add("dflash2_reply_failures_total", 1)

    def count(self, model: str, reply: Reply, queued_s: float) -> None:
        """Count a reply that ran, finished or not."""
        outcome = reply.outcome
        stats = outcome.stats
        self._add("dflash2_replies_total", 1, model=model, finish_reason=outcome.finish_reason or "cancelled")
        for name, value in (
            ("prompt_tokens", stats.prompt_tokens), ("cached_tokens", stats.cached_tokens),
            ("generated_tokens", stats.generated_tokens), ("rounds", stats.rounds),
            ("drafted_tokens", stats.drafted_tokens), ("accepted_tokens", stats.accepted_tokens),
            ("decode_seconds", stats.decode_s), ("prefill_seconds", stats.prefill_s), ("queue_seconds", queued_s),
        ):  # fmt: skip
            self._add(f"dflash2_{name}_total", value, model=model)

    def totals(self) -> dict[str, Any]:
        """The sums since the start, for a page: of requests to the interfaces, and of the replies of each model."""
        requests, models, failures = Counter[str](), dict[str, dict[str, float]](), 0.0
        for (name, labels), value in self._counts.items():
            what, given = name.removeprefix("dflash2_").removesuffix("_total"), dict(labels)
            if what == "requests":
                if given["path"].startswith("/v1/"):  # pages ask again and again: that is nobody's request
                    requests[given["status"]] += int(value)
            elif "model" in given:
                sums = models.setdefault(given["model"], dict.fromkeys(_SUMMED, 0))
                sums[what] += value
            elif what == "reply_failures":
                failures += value
        return {"requests": sum(requests.values()), "requests_by_status": dict(requests),
                "reply_failures": failures, "models": models}  # fmt: skip

    def text(self, running: int, waiting: int, models: Sequence[Mapping[str, Any]]) -> str:
        """All metrics in Prometheus's text form."""
        samples: dict[tuple[str, _Labels], float] = {("dflash2_reply_failures_total", ()): 0, **self._counts}
        samples["dflash2_requests_running", ()] = running
        samples["dflash2_requests_waiting", ()] = waiting
        for model in models:
            labels: _Labels = (("model", str(model["name"])),)  # as replies are counted, whatever alias lists show
            samples["dflash2_model_loaded", labels] = int(model["loaded"])
            samples["dflash2_model_dflash_active", labels] = int(bool(model["dflash_active"]))
        lines = []
        for name, (kind, text) in HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for (own, shown), value in sorted(samples.items()):
                if own == name:
                    lines.append(f"{name}{_shown(shown)} {value:.9g}")
        return "\n".join(lines) + "\n"

    def _add(self, name: str, value: float, **labels: str) -> None:
        self._counts[name, tuple(sorted(labels.items()))] += value  # type: ignore[assignment]


def _shown(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
