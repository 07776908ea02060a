"""Whether an LLM server takes prompts: open, doubted after a refusal, paused, or probing.

`doubted`: it refused a prompt, and nothing says yet whether the prompt or the server is the cause.
It gets a canary: a request of one token. While no prompt waits, it gets a check, which is free. A
server that refuses its canary or its check is paused. After the pause it is `probing`: it gets a
check, then a canary. Health begins as `probing`, so no prompt is taken in before the server has
answered once. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from generator.plan.kv_tree import KvTree

BACKOFF_US_MIN, BACKOFF_US_MAX = 500_000, 4_000_000
"""First and longest pause of a server that refuses; each more refusal in a row doubles it. The
first one is also the shortest time between two canaries."""
RETRY_AFTER_US_MAX = 120_000_000
"""The longest pause that a server may ask for (Retry-After)."""
ServerState = Literal["open", "doubted", "paused", "probing"]
Probe = Literal["check", "canary"]


NOISE_PROMPTS = 32
"""Accepted prompts over which the `noise` of a server is averaged."""


@dataclass(kw_only=True, slots=True)
class DispatchServer:
    """A server, as the dispatcher knows it: a state machine over accepted and refused requests.

    It gets `concurrency` requests at once, and has `in_flight` of them, of which it has begun to
    answer `begun`. It has accepted `accepted` requests. `noise` is how often it refused a prompt
    before it accepted it, on average. `tree` is what it has cached; None: there are no KV events.
    `probe` is a check or a canary that is out. `is_proven`: it accepted a prompt since it was last
    doubted; until then it gets one at a time. The state `paused` ends at `paused_until_us`; a
    canary may be sent at `canary_us`.
    """

    concurrency: int
    tree: KvTree | None = None
    in_flight: int = 0
    begun: int = 0
    noise: float = 0.0
    state: ServerState = "probing"
    probe: Probe | None = None
    accepted: int = 0
    is_proven: bool = True
    paused_until_us: int = 0
    canary_us: int = 0
    _accepted_us: int = 0
    _backoff_us: int = 0
    _is_checked: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it takes prompts; they wait while it is doubted."""
        return self.state in ("open", "doubted")

    @property
    def has_room(self) -> bool:
        """Whether it may get one more request now."""
        is_free = self.is_proven or self.in_flight == self.begun
        return self.state == "open" and is_free and self.in_flight < self.concurrency

    def load(self, without: int = 0) -> float:
        """The share of its slots that are taken, if `without` of its requests are not counted."""
        return (self.in_flight - without) / self.concurrency

    def next_probe(self, now_us: int, *, has_prompts: bool) -> Probe | None:
        """Returns what must be sent now to find out how the server is; it counts as sent."""
        if self.state not in ("doubted", "probing") or self.probe is not None:
            return None
        if not self._is_checked and (self.state == "probing" or not has_prompts):
            self.probe = "check"
        elif not has_prompts:
            self.state = "open"  # a canary is paid, and no prompt would be sent
        elif now_us >= self.canary_us:
            self.probe, self.canary_us = "canary", now_us + BACKOFF_US_MIN
        return self.probe

    def has_accepted_since(self, before: int, now_us: int) -> bool:
        """Returns whether it accepted more than `before` requests, the last within half a second.

        `before`: how many it had accepted at an earlier time.
        """
        return self.accepted > before and now_us - self._accepted_us < BACKOFF_US_MIN

    def prompt_accepted(self, now_us: int, tries: int | None) -> None:
        """The server began to answer a prompt, answered it, or refused it for its content.

        A prompt that was sent before a pause does not end it. `tries`: how often it refused the
        prompt before; None: it began to answer it earlier.
        """
        if tries is not None:
            self.noise += (tries - self.noise) / NOISE_PROMPTS
        self.accepted, self._accepted_us = self.accepted + 1, now_us
        if self.is_open:
            self.state, self.is_proven = "open", True

    def answered(self) -> None:
        """The server completed an answer: the next pause is short again."""
        if self.is_open:
            self._backoff_us = 0

    def probe_passed(self, now_us: int) -> bool:
        """The server answered a check, or accepted a canary. Returns whether it was a canary."""
        is_canary, self.probe = self.probe == "canary", None
        self._is_checked = True
        if is_canary:
            self.accepted, self._accepted_us = self.accepted + 1, now_us
        if self.state in ("doubted", "probing") and (is_canary or self.is_proven):
            self.state = "open"
        return is_canary

    def probe_refused(self, asked_us: int, now_us: int) -> bool:
        """The server refused a check or a canary: it gets nothing for the backoff, or for as long
        as it asked. Returns False if it has accepted a prompt meanwhile.
        """
        was_out, self.probe = self.probe is not None, None
        if self.state not in ("doubted", "probing") or not was_out:
            return False
        self.state, self._is_checked, self.is_proven = "paused", False, False
        self._backoff_us = min(max(BACKOFF_US_MIN, 2 * self._backoff_us), BACKOFF_US_MAX)
        self.paused_until_us = now_us + max(self._backoff_us, asked_us)
        return True

    def refused(self, *, is_busy: bool, is_doubted: bool) -> None:
        """The server refused a prompt. `is_doubted`: it has accepted nothing since it got it."""
        self.is_proven = self.is_proven and not (is_busy or is_doubted)
        if is_doubted and self.state == "open":
            self.state, self._is_checked = "doubted", False

    def advance(self, now_us: int) -> None:
        """Ends a pause that is over."""
        if self.state == "paused" and now_us >= self.paused_until_us:
            self.state = "probing"
