"""The seam of policies of speculation: events of queries in, warm-ups out. Pure, no clock.

A *warm-up* computes the beginning of a prompt, up to the end of some passages, while the search for
its query runs. A query has at most one at a time. The driver tells one policy the events of all
queries, in the order of time, and does what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLoad:
    """The load of the LLM server.

    `in_flight`: requests that it has, warm-ups among them. `waiting`: prompts that are not sent
    yet. `limit`: requests that it may have.
    """

    in_flight: int
    waiting: int
    limit: int

    @property
    def has_room(self) -> bool:
        """Whether the server takes one more request while no prompt waits."""
        return not self.waiting and self.in_flight < self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftFound:
    """A draft arrived: what a search has found in `clusters_done` of its `clusters_total`.

    `passages`: ids of the passages that a prompt would have, best first. Drafts may be missing, but
    they arrive in their order.
    """

    query: str
    passages: tuple[str, ...]
    clusters_done: int
    clusters_total: int
    at_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchEnded:
    """The final passages of a query arrived. Its warm-up, if one runs, is ended by the driver."""

    query: str
    passages: tuple[str, ...]
    at_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUpEnded:
    """A warm-up ended by itself. `is_done` False: it failed, or a prompt needed its slot.

    It does not arrive for a warm-up that the policy cancelled, nor after `SearchEnded`.
    """

    query: str
    is_done: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryAnswered:
    """The last event of a query: it was answered, or the driver forgets it. `wait_us`: from the end
    of its search to the first token; None: not comparable with other queries.
    """

    query: str
    wait_us: int | None = None


SpeculationEvent = DraftFound | SearchEnded | WarmUpEnded | QueryAnswered


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWarmUp:
    """Compute the prompt of the last draft up to the end of these passages, its first ones."""

    query: str
    passages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelWarmUp:
    """End the warm-up of a query. The server keeps what is computed."""

    query: str


SpeculationAction = StartWarmUp | CancelWarmUp


class SpeculationPolicy(Protocol):
    """Decides for all queries of one LLM server. It keeps what it needs of queries in progress.

    Between `SearchEnded` and `QueryAnswered` of a query it starts nothing for it.
    """

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Applies an event; returns the actions to carry out, in this order.

        They may be of other queries than the event's. `load`: before the actions.
        """
        ...


class NoSpeculation:
    """Implements `SpeculationPolicy`: no warm-ups."""

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Does nothing."""
        return ()
