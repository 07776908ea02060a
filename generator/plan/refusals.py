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


NONE = Refusals()
"""Of a prompt that no server refused, or that one answered meanwhile: it does not change."""


class RefusedPrompts:
    """The refusals of all prompts, by digest, and those of each server that are not judged."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[Digest, Refusals] = OrderedDict()
        self._unjudged: dict[int, dict[Digest, RefusedAs]] = {}

    def of(self, digest: Digest) -> Refusals:
        """Returns the refusals of a prompt; to read."""
        return self._refusals.get(digest) or NONE

    def refused(
        self,
        digest: Digest,
        server: int,
        refused_as: RefusedAs,
        *,
        asked_us: int,
        sent_us: int,
        now_us: int,
    ) -> bool:
        """Notes the refusal of a prompt. Returns whether it tells more than the one before it.

        `asked_us`: the pause that the server asked for. Equal prompts that were in flight together,
        and are refused together, count once.
        """
        one = self._refusals.setdefault(digest, Refusals())
        self._refusals.move_to_end(digest)
        if len(self._refusals) > DIGESTS_MAX:
            self._refusals.popitem(last=False)
        if sent_us < one.last_us and server in one.not_before_us:
            return False
        if sent_us - one.last_us > FORGET_US:
            one.count = one.tries_more = 0
            one.tries.clear()
        if one.count == 0:
            one.since_us = now_us
        pause_us = min(PAUSE_US_MIN << min(one.count, 20), PAUSE_US_MAX)
        one.count, one.last_us = one.count + 1, now_us
        one.not_before_us[server] = now_us + max(pause_us, asked_us)
        self._unjudged.setdefault(server, {})[digest] = refused_as
        return True

    def judge(self, server: int) -> list[Digest]:
        """The server accepted a request: what it refused since is the fault of the prompts.

        Returns their digests.
        """
        unjudged = self._unjudged.pop(server, {})
        for digest, refused_as in unjudged.items():
            if (one := self.of(digest)).count:
                one.tries[server] = one.tries.get(server, 0) + (refused_as != "later")
                if refused_as == "gateway":
                    one.tries_more = GATEWAY_TRIES_MORE
        return list(unjudged)

    def forgive(self, server: int) -> list[Digest]:
        """The server refused something else too. Returns the digests of its prompts."""
        unjudged = self._unjudged.pop(server, {})
        for digest in unjudged:
            if (one := self.of(digest)).count:
                one.count -= 1
                one.not_before_us.pop(server, None)
        return list(unjudged)

    def forget(self, digest: Digest) -> bool:
        """Forgets the refusals of a prompt that a server answered; returns whether it had some."""
        return self._refusals.pop(digest, None) is not None
