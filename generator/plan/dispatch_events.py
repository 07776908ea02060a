"""What happens to prompts and LLM servers, and what the dispatcher wants done.

A server is named by its position in `llm.base_url`, from 0. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from generator.plan.health import Probe
from generator.plan.kv_tree import KvTreeEvent
from generator.plan.queue import Prompt
from generator.plan.refusals import RefusedAs

QueryEnd = Literal["answered", "expired", "cancelled", "given_up"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptArrived:
    """A prompt was taken in."""

    prompt: Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptTokenized:
    """The token ids of a prompt are known."""

    id: int
    token_ids: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestAccepted:
    """The server began to answer this prompt."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEnded:
    """The server answered this prompt, or refused it for its content. Neither is retried.

    The server counted `cached_tokens` of the prompt; None: it did not say.
    """

    id: int
    cached_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRefused:
    """The server did not answer a prompt, or, with `id` None, a check or a canary.

    `retry_after_us`: the pause that the server asked for. `is_paid`: the server began to reply, and
    the reply is no answer. `is_lost`: the server may have ended, and then has nothing cached any
    more.
    """

    id: int | None
    server: int
    refused_as: RefusedAs = "later"
    retry_after_us: int | None = None
    is_paid: bool = False
    is_lost: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbePassed:
    """The server answered a check, or accepted a canary."""

    server: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheChanged:
    """The server said what it has cached, or cannot be asked for that any more."""

    server: int
    event: KvTreeEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadSeen:
    """The server has said how many requests wait in it; None: it does not say."""

    server: int
    waiting: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsRevoked:
    """The partitions of these prompts were assigned to another member."""

    ids: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptHastened:
    """A query with this priority and deadline waits for the answer to this prompt."""

    id: int
    priority: int
    deadline_us: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptCancelled:
    """The asker has withdrawn this query."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TimePassed:
    """The clock has moved; nothing else happened."""


DispatchEvent: TypeAlias = (
    PromptArrived
    | PromptTokenized
    | RequestAccepted
    | RequestEnded
    | RequestRefused
    | ProbePassed
    | CacheChanged
    | LoadSeen
    | PromptsRevoked
    | PromptHastened
    | PromptCancelled
    | TimePassed
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SendPrompt:
    """Send this prompt to this server; it is the `attempt`th time, counted from 1."""

    id: int
    attempt: int
    server: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeServer:
    """Ask the server for its models, which is a check, or for one token, which is a canary."""

    server: int
    probe: Probe


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayCache:
    """Ask the server for all KV events from this number on. Pass them on, then `ReplayEnded`."""

    server: int
    replay_from: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequest:
    """Cancel this request in flight. Later events about it are ignored."""

    id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EndQuery:
    """Answer this query: with the result of its request, or with why there is none.

    `given_up`: servers refused it too often or for too long, though not all others. `text_of`: the
    prompt with an equal key whose text is that of this one; None: it has its own.
    """

    id: int
    how: QueryEnd
    text_of: int | None = None


DispatchAction: TypeAlias = SendPrompt | ProbeServer | ReplayCache | CancelRequest | EndQuery
