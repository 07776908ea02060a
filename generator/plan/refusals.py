"""What LLM servers have refused of each prompt, and when a prompt has failed. Pure.

A refusal says something about its prompt when the server has accepted another request since it got
the prompt: then the refusal is *judged*. If the server refuses a canary, too, it is *forgiven*.
Prompts with an equal digest share their refusals.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

PAUSE_US_MIN, PAUSE_US_MAX = 500_000, 60_000_000
"""First and longest pause of a prompt at a server that refused it; each refusal doubles it."""
GATEWAY_TRIES_MORE = 4
"""A gateway that does not reach its server (502, 504) is tried so many times more."""
FORGET_US = 600_000_000
"""A prompt that no server got for so long begins anew."""
DIGESTS_MAX = 10_000
"""Prompts whose refusals are remembered; the oldest are forgotten."""

RefusedAs = Literal["later", "gateway", "failed"]
"""`later`: the server says that it takes no work now, or does not answer; never a try."""
Digest: TypeAlias = str | int


@dataclass(slots=True)
class Refusals:
    """The refusals of a prompt since a server last accepted it.

    `count`: those that were not forgiven, from `since_us` to `last_us`. `tries`: the judged ones by
    server, without `later` ones. `not_before_us`: when each server may get the prompt again.
    """

    count: int = 0
    since_us: int = 0
    last_us: int = 0
    tries: dict[int, int] = field(default_factory=dict)
    tries_more: int = 0
    not_before_us: dict[int, int] = field(default_factory=dict)

    def may_go(self, server: int, now_us: int) -> bool:
        """Returns whether the pause of the prompt at this server is over."""
        return self.not_before_us.get(server, 0) <= now_us

    def refused(self, server: int, asked_us: int, sent_us: int, now_us: int) -> bool:
        """Notes a refusal. Returns whether it tells more than the one before it.

        Equal prompts that were in flight together, and are refused together, count once.
        """
        if sent_us < self.last_us and server in self.not_before_us:
            return False
        if sent_us - self.last_us > FORGET_US:
            self.count = self.tries_more = 0
            self.tries.clear()
        if self.count == 0:
            self.since_us = now_us
        pause_us = min(PAUSE_US_MIN << min(self.count, 20), PAUSE_US_MAX)
        self.count, self.last_us = self.count + 1, now_us
        self.not_before_us[server] = now_us + max(pause_us, asked_us)
        return True

    def judge(self, server: int, refused_as: RefusedAs) -> None:
        """The server accepted another request: it refuses this prompt, and not others."""
        if self.count:
            self.tries[server] = self.tries.get(server, 0) + (refused_as != "later")
            if refused_as == "gateway":
                self.tries_more = GATEWAY_TRIES_MORE

    def forgive(self, server: int) -> None:
        """The server refused something else too."""
        if self.count:
            self.count -= 1
            self.not_before_us.pop(server, None)


NONE = Refusals()
"""Of a prompt that no server refused, or that one answered meanwhile: it does not change."""


class RefusedPrompts:
    """The refusals of all prompts, by digest."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[Digest, Refusals] = OrderedDict()

    def of(self, digest: Digest) -> Refusals:
        """Returns the refusals of a prompt; to read."""
        return self._refusals.get(digest) or NONE

    def noted(self, digest: Digest) -> Refusals:
        """Returns the same, to change."""
        refusals = self._refusals.setdefault(digest, Refusals())
        self._refusals.move_to_end(digest)
        if len(self._refusals) > DIGESTS_MAX:
            self._refusals.popitem(last=False)
        return refusals

    def forget(self, digest: Digest) -> None:
        """Forgets the refusals of a prompt that a server answered."""
        self._refusals.pop(digest, None)
