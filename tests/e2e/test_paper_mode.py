"""Paper mode: with the settings of its guide, windows, groups, hints and cache are as described."""

from __future__ import annotations

import json
import random
import shlex
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from bench.core.stack import Stack, parse_settings
from cli.settings import CarpoolSettings, Given, load
from schemas.codec import decode
from schemas.group import Group, GroupedQuery
from schemas.retrieval import Retrieval
from schemas.topics import GROUPS, QUERIES, RETRIEVALS
from tests.deploy.doc_blocks import ROOT, blocks_of
from tests.e2e.support import MODEL, Publisher, build_index, question, read_all, read_to_end
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
GUIDE = ROOT / "docs" / "guides" / "paper-mode.md"
FILE = GUIDE.with_suffix(".toml")
SETTINGS = load(CarpoolSettings, Given(file=FILE, environ={}, flags={})).grouper
BACKLOG, CLUSTERS = 500, 1_000
CACHE_BYTES = 2_621_440  # for passages, and for a third of the clusters


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("paper"), documents=10_000, nlist=CLUSTERS)


class Questions:
    """Publishes questions, of which some are alike, and reads what became of them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.asked = bootstrap, set[str]()
        self._rng, self._publisher = random.Random(3), Publisher(bootstrap)
        self._texts = [question(self._rng) for _ in range(200)]

    def ask(self, count: int) -> None:
        for _ in range(count):
            query_id = f"q-{len(self.asked)}"
            self.asked.add(query_id)
            body = {"query_id": query_id, "text": self._rng.choice(self._texts)}
            self._publisher.queue(QUERIES.name, json.dumps(body).encode(), key=query_id)
        self._publisher.flush()

    def retrievals(self) -> list[Retrieval]:
        """Returns them once every question has one."""
        found = read_all(
            self.bootstrap,
            RETRIEVALS.name,
            until=lambda found: self.asked <= {each.body["query"]["query_id"] for each in found},
        )
        return [decode(Retrieval, each.value, each.headers) for each in found]

    def windows(self) -> list[list[Group]]:
        """Returns the groups of each window, in the order in which they were written."""
        windows = defaultdict[int, list[Group]](list)
        for each in read_to_end(self.bootstrap, GROUPS.name):
            group = decode(Group, each.value, each.headers)
            windows[group.window_id].append(group)
        return list(windows.values())


def paper_mode(bootstrap: str, index: Path, folder: Path, settings: dict[str, str]) -> Stack:
    ours = {"CARPOOL_CONFIG": str(FILE), "CARPOOL_EMBEDDING_MODEL": MODEL}
    return Stack(
        bootstrap=bootstrap,
        index_dir=index,
        work_dir=folder,
        services=("grouper", "searcher"),
        settings=ours | settings,
    )


def jaccard(one: GroupedQuery, other: GroupedQuery) -> float:
    return len({*one.clusters} & {*other.clusters}) / len({*one.clusters} | {*other.clusters})


def check_groups(windows: Sequence[Sequence[Group]]) -> None:
    """Checks each record, and that there is more than one group in a window, and in a group."""
    for groups in windows:
        for group, following in pairwise(groups):
            hint, first = group.next, following.queries[0]
            assert hint is not None and following.sequence == group.sequence + 1
            assert hint.query_id == first.query.query_id and hint.clusters == first.clusters
        assert groups[-1].next is None
        assert not any(group.horizon for group in groups)
    for groups in windows[:-1]:
        assert 1 < len(groups) < sum(len(group.queries) for group in groups)
    for group in (group for groups in windows for group in groups):
        assert {*group.clusters} == {at for each in group.queries for at in each.clusters}
        for place, query in enumerate(group.queries):
            assert len(query.clusters) == SETTINGS.nprobe
            nearest = max((jaccard(query, each) for each in group.queries[:place]), default=1)
            assert nearest >= SETTINGS.jaccard_similarity_min


def test_a_backlog_becomes_windows_of_20_to_100_ordered_groups_and_reads_ahead(
    bootstrap: str, index: Path, tmp_path: Path
) -> None:
    questions = Questions(bootstrap)
    questions.ask(BACKLOG)  # before the grouper starts
    cache = {"CARPOOL_SEARCHER_BUDGET_BYTES": str(CACHE_BYTES)}
    with paper_mode(bootstrap, index, tmp_path, cache) as stack:
        retrievals, windows = questions.retrievals(), questions.windows()
        searcher = stack["searcher"]

        def are_read_ahead() -> float:
            questions.ask(20)  # the first group is searched before the next one comes, or not
            questions.retrievals()
            return searcher.metric("carpool_prefetches_total")

        wait_until(are_read_ahead, "clusters of a next group are read ahead")
        assert searcher.metric("carpool_evictions_total") > 0
    assert {probe.tier for each in retrievals for probe in each.probes} == {"ram", "ssd"}
    assert all(each.search and each.search.mode == "exact" for each in retrievals)
    sizes = [sum(len(group.queries) for group in groups) for groups in windows]
    assert sum(sizes) == BACKLOG
    assert all(20 <= size <= 100 for size in sizes[:-1]) and sizes[-1] <= 100, "the rest"
    check_groups(windows)


def shard_settings() -> list[str]:
    """The settings of the guide's command with a shard."""
    (text,) = (block.text for block in blocks_of(GUIDE) if "shard_bytes" in block.text)
    return [value for option, value in pairwise(shlex.split(text)) if option == "--set"]


def test_with_the_hot_shard_groups_stay_and_probes_find_its_clusters(
    bootstrap: str, index: Path, tmp_path: Path
) -> None:
    questions = Questions(bootstrap)
    questions.ask(BACKLOG)
    with paper_mode(bootstrap, index, tmp_path, parse_settings(shard_settings())) as stack:
        questions.retrievals()
        windows, searcher = questions.windows(), stack["searcher"]
        wait_until(lambda: searcher.metric("carpool_shard_bytes") > 0, "it is filled", every_s=0.1)
        questions.ask(20)
        questions.retrievals()
        assert searcher.metric("carpool_shard_probes_total", side="shard") > 0
    check_groups(windows)
