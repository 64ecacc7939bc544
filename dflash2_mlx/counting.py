"""How long a prompt is, before anything is decoded.

Owns: nothing but the count; `text.py` decides how a prompt becomes tokens.
"""

from __future__ import annotations

from .config import GenerationConfig
from .load import Engine
from .text import Prompt, RenderedPrompt, render_prompt


def count_prompt_tokens(engine: Engine, prompt: Prompt | RenderedPrompt, config: GenerationConfig | None = None) -> int:
    """Count the tokens that `stream_generate` would read for this prompt and config.

    Raises:
        ConfigError, PromptError: as `stream_generate` would.
    """
    if isinstance(prompt, RenderedPrompt):
        return len(prompt.ids)
    config = config or GenerationConfig()
    rendered = render_prompt(
        engine.tokenizer, prompt, chat_template=config.chat_template, template_kwargs=config.chat_template_kwargs
    )
    return len(rendered.ids)
