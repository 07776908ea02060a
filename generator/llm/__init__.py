"""How is a model asked? One protocol, with a real server, one in memory and none at all behind it.

*Invariant:* an engine raises only `LlmRefusal` (try again later) and `PromptRefused` (this prompt,
never). *Invariant:* a cancelled request leaves nothing running at the server. Absent on purpose:
retries and pauses; `generator.plan` decides them.
"""

from generator.llm.protocol import (
    LlmEngine,
    LlmFinished,
    LlmPiece,
    LlmRefusal,
    LlmRequest,
    PromptRefused,
)

__all__ = ["LlmEngine", "LlmFinished", "LlmPiece", "LlmRefusal", "LlmRequest", "PromptRefused"]
