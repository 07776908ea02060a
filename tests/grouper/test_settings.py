"""Relations between the settings of the grouper are checked together."""

from __future__ import annotations

import pytest

from carpool.clock import SystemClock
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.telemetry.metrics import Metrics
from grouper.service import build_stage
from grouper.settings import GrouperSettings
from schemas.topics import GROUPS

LARGEST = GROUPS.max_message_bytes - 64 * 1024


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            GrouperSettings(window_queries_min=101),
            "window_queries_min 101 is more than window_queries_max 100",
        ),
        (GrouperSettings(intake_queries_max=199), "set at least 200"),
        (GrouperSettings(group_bytes_max=LARGEST + 1), "leaves no room for headers"),
    ],
)
def test_relations_that_do_not_hold_are_named(settings: GrouperSettings, says: str) -> None:
    (problem,) = settings.check()
    assert says in problem
    with pytest.raises(ConfigError, match=says):
        build_stage(settings, IndexSettings(), EmbeddingSettings(), Metrics(), SystemClock())


def test_the_defaults_and_the_largest_group_are_accepted() -> None:
    assert GrouperSettings().check() == []
    assert GrouperSettings(group_bytes_max=LARGEST).check() == []
