"""The seam of orders: which of several waiting prompts is next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from generator.plan.order.cached_prefixes import PromptForm


@dataclass(frozen=True, kw_only=True, slots=True)
class NextPrompt:
    """The prompt to send, and in which form. `form` None: as it is."""

    id: int
    form: PromptForm | None = None


class Order(Protocol):
    """Chooses one of several prompts between which priority, deadline and tenant do not decide."""

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        """Returns the next of `ids`, which are in the order of arrival and at least one."""
        ...
