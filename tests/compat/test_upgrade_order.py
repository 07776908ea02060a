"""The order of an upgrade in docs/guides/upgrading.md: every reader comes before its writers."""

from __future__ import annotations

import re
from pathlib import Path

from carpool.kafka.acls import READS, SERVICES, WRITES
from schemas.topics import RETRY_TOPICS

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "upgrading.md"
ORDER = re.compile(r"Restart the (\w+)s, then the (\w+)s, then the (\w+)s, then the (\w+)s")


def test_every_reader_is_upgraded_before_its_writers_except_for_retries() -> None:
    found = ORDER.search(" ".join(PAGE.read_text(encoding="utf-8").split()))
    assert found is not None
    order = found.groups()
    assert set(order) == set(SERVICES)
    too_late = {
        topic.name
        for reader in SERVICES
        for topic in READS[reader]
        for writer in SERVICES
        if topic in WRITES[writer] and order.index(writer) < order.index(reader)
    }
    assert too_late == set(RETRY_TOPICS), "a circle: every service writes them"
