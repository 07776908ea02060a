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


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (GrouperSettings(tenant_weights="acme"), "is no TENANT=WEIGHT"),
        (GrouperSettings(scatter=True), r"set \[kafka\] lanes to at least 2"),
    ],
)
def test_relations_that_do_not_hold_are_named(settings: GrouperSettings, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_stage(settings, IndexSettings(), EmbeddingSettings(), Metrics(), SystemClock())


def test_bounds_follow_from_the_window_and_the_horizon() -> None:
    settings = GrouperSettings()
    assert (settings.window_queries_min, settings.intake_queries_max) == (20, 800)
    assert GrouperSettings(window_queries_max=1).window_queries_min == 1
