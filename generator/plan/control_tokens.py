"""Keeps the control tokens of language models out of questions and passages."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"<(?=[|｜]"  # <|im_start|>, <|eot_id|>, <｜User｜>
    r"|/?(?:s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn|tool_call|tool_response|think)>"
    r"|<\s*/?SYS>>)"
    r"|\[(?=/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
"""The first character of what ChatML, Llama, Mistral, Gemma, DeepSeek and Qwen read as control."""


def as_plain_text(text: str) -> str:
    """Returns `text` with a space inside each control token, so a tokenizer reads it as words.

    `<|im_start|>` becomes `< |im_start|>`: a passage cannot end the user's turn or begin another.
    """
    return _CONTROL.sub(lambda match: match[0] + " ", text)
