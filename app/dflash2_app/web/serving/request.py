"""What a reply is to be, in the words of no interface: messages, limits, sampling, tools and format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...engine.model import Prompt

if TYPE_CHECKING:
    import dflash2_mlx as d2


AUTO, REQUIRED, NONE = "auto", "required", "none"


@dataclass(frozen=True)
class Ask:
    """What a reply is to be.

    Args:
        prompt: chat messages as chat templates want them, or bare text or token ids.
        tools: as OpenAI writes them; what the template shows the model.
        tool_choice: "auto", "required", or the name of the one to call.
        schema: the answer is JSON of this schema; None leaves it free.
        thinking_budget: most tokens of thinking; None sets no limit.
        notes: where the settings win over the request; told with the reply.
    """

    prompt: Prompt
    config: d2.GenerationConfig
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = AUTO
    parallel_calls: bool = True
    schema: Mapping[str, Any] | None = None
    schema_param: str = "response_format"
    thinking_budget: int | None = None
    names_length: bool = False  # else the reply may be as long as the settings and the context allow
    notes: tuple[str, ...] = ()
