"""The protocol of LLM engines: requests, events and errors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from carpool.errors import CarpoolError, RetryableError
from generator.plan.refusals import RefusedAs

RefusalKind = Literal[
    "unreachable", "busy", "gateway", "timeout", "broken", "model_missing", "forbidden", "misfit"
]
"""Why a server refused a request: the label of metrics.

`unreachable`: there is no connection. `busy`: it says so (429, 503). `gateway`: a proxy does not
reach it (502, 504). `timeout`: it accepted the request and stayed silent. `broken`: it ended the
answer early, failed, or violated its protocol. `model_missing`, `forbidden`: it does not fit the
settings. `misfit`: it answers with what is no API, refuses for now (409, 425), or refuses a prompt
and has answered none yet.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmRequest:
    """One prompt. `id` is in the server's logs, the same for retries.

    The prompt is a chat of two messages, or the `token_ids` that the server makes of them. Empty
    ids are not known yet. `segments`: `user`, cut so that the ids of each part can be used again.
    """

    id: str
    system: str
    user: str
    max_tokens: int
    segments: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int | None = None
    priority: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmPiece:
    """The next characters that the model wrote; never empty.

    `so_far`: the counts up to here.
    """

    text: str
    so_far: LlmFinished


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmFinished:
    """The end of an answer, with the server's token counts. `finish_reason`: such as `stop`.

    `counts_cached`: the server has said how many tokens of the prompt were cached. `refusal`: what
    the model said in place of an answer.
    """

    finish_reason: str
    model: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    counts_cached: bool = False
    refusal: str = ""


LlmEvent: TypeAlias = LlmPiece | LlmFinished


class LlmRefusal(RetryableError):
    """The server did not answer, and may do so later.

    `is_paid`: it began to reply, and its reply is no answer.
    """

    def __init__(
        self,
        kind: RefusalKind,
        message: str,
        *,
        retry_after_s: float | None = None,
        is_paid: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.kind: RefusalKind = kind
        self.is_paid = is_paid

    @classmethod
    def unreadable(cls, error: Exception) -> LlmRefusal:
        """Returns the refusal of a reply that raised this error where it was read or used."""
        said = f"its reply cannot be read ({type(error).__name__}: {str(error)[:300]})"
        return cls("broken", said, is_paid=True)

    @property
    def refused_as(self) -> RefusedAs:
        """What the refusal of a prompt counts as."""
        if self.kind in ("unreachable", "busy"):
            return "later"
        return "gateway" if self.kind == "gateway" else "failed"

    @property
    def is_lost(self) -> bool:
        """Whether the server may have ended, and lost what it had cached."""
        return self.kind in ("unreachable", "broken")


class PromptRefused(CarpoolError):
    """The server refuses this prompt for its content (too long, not valid): a retry is useless."""


class LlmEngine(Protocol):
    """A model that can be asked. All calls run in one event loop."""

    @property
    def address(self) -> str:
        """The server in messages: its URL, or a name."""
        ...

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """The token ids of a fixed sample text; empty while ids are not known."""
        ...

    async def check(self) -> None:
        """Returns if the server answers and has the model. Raises `LlmRefusal`.

        Finds out again what the server takes.
        """
        ...

    async def canary(self) -> None:
        """Returns if the server answers a request of one token. Raises `LlmRefusal`."""
        ...

    async def tokenize(self, request: LlmRequest) -> tuple[int, ...]:
        """Returns the ids of a prompt; none if its text is sent. Raises `LlmRefusal`.

        `stream` does this itself for a request without `token_ids`.
        """
        ...

    async def prefix(self, request: LlmRequest, passages: int) -> tuple[int, ...]:
        """Returns the ids of the beginning of a prompt, up to the end of its first `passages`.

        Empty if the prompt is sent as text. Raises `LlmRefusal`.
        """
        ...

    async def waiting(self) -> int | None:
        """Returns how many requests wait in the server; None: it does not say. Never raises."""
        ...

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        """Yields pieces as they are written, then exactly one `LlmFinished`.

        Raises `LlmRefusal` or `PromptRefused`. To close the generator, or to cancel its task, ends
        the request at the server.
        """
        ...

    async def close(self) -> None:
        """Closes the connections. Called once, with no request in flight."""
        ...
