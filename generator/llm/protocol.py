"""What an LLM engine takes, gives and raises."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from carpool.errors import CarpoolError, RetryableError

RefusalKind = Literal[
    "unreachable", "busy", "timeout", "broken", "model_missing", "forbidden", "misfit"
]
"""Why a server did not do its work: the label of metrics.

`busy`: it said so (429, 503). `timeout`: it took the request and then said nothing. `broken`: it
broke off, failed, or answered with something else than its protocol. `model_missing`, `forbidden`:
it runs, but not as the settings have it. `misfit`: it refuses a prompt, and has answered none yet,
so that the settings are as likely to blame as the prompt: a bad deployment must not fail every
query of a topic.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmRequest:
    """One prompt. `id` names it in the server's logs, and stays the same over retries; `schema` is
    a JSON Schema.
    """

    id: str
    system: str
    user: str
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    priority: int = 0
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmPiece:
    """The next characters of what the model writes; never empty."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmFinished:
    """The end of an answer, with tokens as the server counted them. `finish_reason`: `stop`,
    `length`, or the server's own.
    """

    finish_reason: str
    model: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int


LlmEvent: TypeAlias = LlmPiece | LlmFinished


class LlmRefusal(RetryableError):
    """The server did not do its work, and may do it later. The message says what it means and what
    to do.
    """

    def __init__(
        self, kind: RefusalKind, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.kind: RefusalKind = kind

    @property
    def is_suspect(self) -> bool:
        """Whether the prompt itself may have caused it, rather than the state of the server."""
        return self.kind in ("timeout", "broken", "misfit")


class PromptRefused(CarpoolError):
    """The server refuses this prompt for what it is (too long, not valid); sending it again is of
    no use.
    """


class LlmEngine(Protocol):
    """A model that can be asked. All calls run in one event loop."""

    @property
    def address(self) -> str:
        """What to call the server in a message: its URL, or a name."""
        ...

    async def check(self) -> None:
        """Returns if the server answers and has the model. Raises `LlmRefusal`."""
        ...

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """Yields pieces as they are written, then exactly one `LlmFinished`. Raises `LlmRefusal` or
        `PromptRefused`.

        Closing the generator, or cancelling its task, ends the request at the server.
        """
        ...

    async def close(self) -> None:
        """Lets go of connections. Called once, when nothing runs."""
        ...
