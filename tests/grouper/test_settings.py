"""The grouper's settings: the paper's defaults, and relations that are checked together."""

from __future__ import annotations

import pytest

from carpool.errors import ConfigError
from carpool.settings import describe
from grouper.settings import GrouperSettings
from schemas.topics import GROUPS


def test_windows_and_theta_are_the_papers_by_default_and_all_fits_together() -> None:
    """Batches of 20 to 100 queries, theta 0.5 (CaGR-RAG, section 4); grouping and order are
    Carpool's own.
    """
    settings = GrouperSettings()
    assert settings.check() == []
    assert (settings.window_queries_min, settings.window_queries_max) == (20, 100)
    assert settings.jaccard_similarity_min == 0.5
    assert (settings.policy, settings.order) == ("per_window", "arrival")
    assert (
        settings.intake_queries_max >= (settings.horizon_windows + 3) * settings.window_queries_max
    )


def test_every_setting_is_documented() -> None:
    docs = describe("grouper", GrouperSettings)
    assert all(len(doc.description) > 40 for doc in docs)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            GrouperSettings(window_queries_min=101),
            "window_queries_min 101 is more than window_queries_max 100",
        ),
        (GrouperSettings(intake_queries_max=199), "set at least 200"),
        (GrouperSettings(group_bytes_max=GROUPS.max_message_bytes), "leaves no room for headers"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    settings: GrouperSettings, says: str
) -> None:
    problems = settings.check()
    assert len(problems) == 1
    assert says in problems[0]


def test_the_largest_group_that_is_allowed_fits_its_topic() -> None:
    assert GrouperSettings(group_bytes_max=GROUPS.max_message_bytes - 64 * 1024).check() == []
    assert (
        len(GrouperSettings(group_bytes_max=GROUPS.max_message_bytes - 64 * 1024 + 1).check()) == 1
    )


def test_a_stage_is_not_built_from_settings_that_clash() -> None:
    from carpool.clock import SystemClock
    from carpool.disk.settings import IndexSettings
    from carpool.embedding import EmbeddingSettings
    from carpool.telemetry.metrics import Metrics
    from grouper.service import build_stage

    with pytest.raises(ConfigError, match="lower the first"):
        build_stage(
            GrouperSettings(window_queries_min=101),
            IndexSettings(),
            EmbeddingSettings(),
            Metrics(),
            SystemClock(),
        )
