"""The prompts that wait for the LLM server. The next one is chosen when it is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

OLDEST_EVERY = 16
"""Every 16th prompt sent is the one that waited longest, so no priority starves a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt as the queue sees it. Lower `priority` is sooner; times are epoch microseconds.

    `due_us`: the deadline of another query that waits for its answer; it only orders.
    """

    id: int
    arrival_us: int
    priority: int = 0
    deadline_us: int | None = None
    due_us: int | None = None

    def is_late(self, now_us: int) -> bool:
        """Returns whether the deadline has passed."""
        return self.deadline_us is not None and now_us >= self.deadline_us

    def urgency(self) -> tuple[int, bool, int, int, int]:
        """Returns the key of the order: priority, deadline (none is last), arrival, id."""
        due_us = self.deadline_us if self.due_us is None else self.due_us
        return (
            self.priority,
            due_us is None,
            due_us or 0,
            self.arrival_us,
            self.id,
        )


@dataclass(slots=True)
class QueuedPrompt:
    """A prompt, waiting or at the server, and its tries so far.

    `is_begun`: the server has begun to answer the last try. `failures`: those that the prompt may
    have caused. `not_before_us`: when it may be sent again.
    """

    prompt: Prompt
    attempts: int = 0
    is_begun: bool = False
    failures: int = 0
    answered_at_failure: int = 0
    not_before_us: int = 0


class PromptQueue:
    """The waiting prompts. Choosing one costs O(waiting)."""

    def __init__(self) -> None:
        self._waiting: dict[int, QueuedPrompt] = {}
        self._taken = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id: int) -> bool:
        return id in self._waiting

    def __iter__(self) -> Iterator[QueuedPrompt]:
        return iter(self._waiting.values())

    def add(self, queued: QueuedPrompt) -> None:
        """Adds a prompt that is new, or that was refused."""
        self._waiting[queued.prompt.id] = queued

    def get(self, id: int) -> QueuedPrompt | None:
        """Returns a prompt that waits, or None."""
        return self._waiting.get(id)

    def remove(self, id: int) -> QueuedPrompt | None:
        """Removes a prompt without sending it; returns None if it does not wait."""
        return self._waiting.pop(id, None)

    def has_probe(self) -> bool:
        """Returns whether a prompt waits that can probe the server.

        A prompt that may itself have caused a failure says nothing about the server.
        """
        return any(queued.failures == 0 for queued in self)

    def take_probe(self) -> QueuedPrompt:
        """Removes and returns the prompt to probe the server with; `has_probe` was True."""
        fit = [queued.prompt for queued in self if queued.failures == 0]
        return self._take(min(fit, key=Prompt.urgency))

    def take_next(self, now_us: int) -> QueuedPrompt | None:
        """Removes and returns the next prompt to send, or None if none may be sent now."""
        ready = [queued.prompt for queued in self if queued.not_before_us <= now_us]
        if not ready:
            return None
        if (self._taken + 1) % OLDEST_EVERY == 0:
            return self._take(min(ready, key=lambda prompt: (prompt.arrival_us, prompt.id)))
        return self._take(min(ready, key=Prompt.urgency))

    def has_ready(self, now_us: int) -> bool:
        """Returns whether a prompt may be sent now."""
        return any(queued.not_before_us <= now_us for queued in self)

    def _take(self, prompt: Prompt) -> QueuedPrompt:
        self._taken += 1
        return self._waiting.pop(prompt.id)
