"""Whether the LLM server takes prompts: open, paused after a refusal, or probing after a pause.

`probing`: one request finds out whether the server takes work again: a prompt, or a check where no
prompt is fit for it. Health begins as `probing`, so no prompt is taken in before the server has
answered once. Pure.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

BACKOFF_US_MIN, BACKOFF_US_MAX = 500_000, 4_000_000
"""First and longest pause of a server that refuses; each more refusal in a row doubles it."""
RETRY_AFTER_US_MAX = 120_000_000
"""The longest pause that a server may ask for (Retry-After)."""
ServerState = Literal["open", "paused", "probing"]
CHECK: Literal["check"] = "check"
Probe: TypeAlias = int | Literal["check"]
"""The prompt that probes the server, by id, or a check."""


class ServerHealth:
    """A state machine over accepted, answered and refused requests.

    Read `state`, `probe` (None: no probe is out) and `paused_until_us` freely.
    """

    def __init__(self) -> None:
        self._backoff_us = BACKOFF_US_MIN
        self.state: ServerState = "probing"
        self.probe: Probe | None = None
        self.paused_until_us = 0

    @property
    def needs_probe(self) -> bool:
        """Whether a probe must be sent now."""
        return self.state == "probing" and self.probe is None

    def accepted(self, request: Probe) -> None:
        """The server accepted a request.

        A request that was sent before the pause says nothing about the server now, so only the
        probe opens it. It does not end the backoff: a server may list its models, or begin an
        answer, and fail on all the same.
        """
        if self.state == "probing" and self.probe == request:
            self.state, self.probe = "open", None

    def answered(self) -> None:
        """The server completed an answer: the next pause is short again."""
        if self.state == "open":
            self._backoff_us = BACKOFF_US_MIN

    def refused(self, retry_after_us: int | None, now_us: int) -> None:
        """The server refused a request: pause for the backoff, or for as long as the server asked.

        Requests that were in flight together and fail together count once: a refusal during a
        pause only lengthens the pause, if the server asks for that.
        """
        asked_us = min(retry_after_us or 0, RETRY_AFTER_US_MAX)
        if self.state == "paused":
            self.paused_until_us = max(self.paused_until_us, now_us + asked_us)
            return
        self.state, self.probe = "paused", None
        self.paused_until_us = now_us + max(self._backoff_us, asked_us)
        self._backoff_us = min(2 * self._backoff_us, BACKOFF_US_MAX)

    def cancelled(self, request: Probe) -> None:
        """A request was cancelled. If it was the probe, another probe must be sent."""
        if self.probe == request:
            self.probe = None

    def advance(self, now_us: int) -> None:
        """Ends a pause that is over."""
        if self.state == "paused" and now_us >= self.paused_until_us:
            self.state, self.probe = "probing", None
