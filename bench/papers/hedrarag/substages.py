"""Carpool's searcher with other sub-stages of exact searches (HedraRAG 4.2, figure 16).

python -m bench.papers.hedrarag.substages no-substages | fixed-substages
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

from carpool.__main__ import main
from searcher.cluster_major_executor import ClusterMajorExecutor
from searcher.plan.substage import SubstageBudget
from searcher.search_loop import StopSearching

FIXED = 8
"""Slices of a fixed sub-stage; a slice is a cluster, or a part of a large one."""
take_messages = ClusterMajorExecutor._take_messages


def take_messages_when_idle(executor: Any, finish: Any) -> None:
    """Lets searches begin when those before them have all ended."""
    waiting = vars(executor).setdefault("_waiting", [])
    while not executor._mailbox.empty():
        waiting.append(executor._mailbox.get())
    if not len(executor._planner) or any(isinstance(one, StopSearching) for one in waiting):
        for message in waiting:
            executor._mailbox.put(message)
        waiting.clear()
        take_messages(executor, finish)


def changed(name: str) -> Any:
    """Returns a context manager: it changes the searchers that are opened in it."""
    if name == "no-substages":
        return patch.object(ClusterMajorExecutor, "_take_messages", take_messages_when_idle)
    fixed: Any = {"budget_us_for": lambda *_: FIXED, "cost_us": lambda *_: 1}
    return patch.multiple(SubstageBudget, **fixed)


if __name__ == "__main__":
    with changed(sys.argv[1]):
        sys.argv = ["carpool", "searcher"]
        main()
