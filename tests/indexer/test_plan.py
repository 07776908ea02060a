"""What is kept of an interrupted build, what remains, how many clusters, probes and passes."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.pages import choose_layout
from indexer.plan.defaults import default_nlist, default_nprobe
from indexer.plan.passes import (
    encode_bytes,
    memory_min_bytes,
    pass_bytes,
    plan_passes,
    sample_rows_max,
)
from indexer.plan.state import (
    STATE_FORMAT,
    BuildIdentity,
    BuildState,
    ClusteringIdentity,
    ClustersDone,
    CorpusIdentity,
    DocumentsDone,
    LayoutIdentity,
    VectorsIdentity,
    plan_resume,
    plan_shards,
)

CORPUS = CorpusIdentity(size_bytes=10, sha256="c", passage_bytes_max=100)
VECTORS = VectorsIdentity(
    embedding_model="m", embedding_model_name="name", vectors_sha256="", shard_rows=16
)
CLUSTERING = ClusteringIdentity(nlist=0, seed=0, train_bytes_max=1 << 30)
LAYOUT = LayoutIdentity(vector_dtype="float32", segment_bytes_max=1 << 28, code_rows_min=50_000)
WANTED = BuildIdentity(corpus=CORPUS, vectors=VECTORS, clustering=CLUSTERING, layout=LAYOUT)
DOCUMENTS = DocumentsDone(row_count=40, problem_count=0, problems=())
FOUND = BuildState(
    format=STATE_FORMAT,
    started_us=5,
    identity=WANTED,
    documents=DOCUMENTS,
    dimension=16,
    clusters=ClustersDone(centroids_crc32=1, rows_crc32=2, vectors_digest="d"),
)


def test_a_first_build_begins_now_and_keeps_nothing() -> None:
    resume = plan_resume(None, WANTED, now_us=9)
    assert resume.state == BuildState(format=STATE_FORMAT, started_us=9, identity=WANTED)
    assert (resume.keeps_shards, resume.changes, resume.discards) == (False, (), False)


def test_the_same_build_goes_on_with_all_of_it_and_its_start() -> None:
    resume = plan_resume(FOUND, WANTED, now_us=9)
    assert (resume.state, resume.keeps_shards, resume.changes, resume.discards) == (
        FOUND,
        True,
        (),
        False,
    )


DOCUMENTS_ONLY = {"dimension": None, "clusters": None, "started_us": 9}
NOTHING = {"documents": None, **DOCUMENTS_ONLY}
VECTORS_ONLY = {"clusters": None}


@pytest.mark.parametrize(
    ("part", "field", "value", "lost"),
    [
        *(("corpus", field, 99, NOTHING) for field in CORPUS.__struct_fields__),
        *(("vectors", field, 99, DOCUMENTS_ONLY) for field in VECTORS.__struct_fields__),
        *(("clustering", field, 99, VECTORS_ONLY) for field in CLUSTERING.__struct_fields__),
        *(("layout", field, 99, {}) for field in LAYOUT.__struct_fields__),
    ],
)
def test_a_changed_build_keeps_the_work_that_does_not_depend_on_the_change(
    part: str, field: str, value: int, lost: dict[str, object]
) -> None:
    changed = msgspec.structs.replace(getattr(WANTED, part), **{field: value})
    wanted = msgspec.structs.replace(WANTED, **{part: changed})
    resume = plan_resume(FOUND, wanted, now_us=9)
    assert resume.state == msgspec.structs.replace(FOUND, identity=wanted, **lost)
    assert resume.discards == (part in ("corpus", "vectors")) == (not resume.keeps_shards)
    name = "clusters" if part == "clustering" else part
    old = getattr(getattr(WANTED, part), field)
    assert resume.changes == (f"{name}: {field} was {old!r} and is {value}",)


def test_a_state_of_another_format_keeps_nothing_and_says_so() -> None:
    resume = plan_resume(msgspec.structs.replace(FOUND, format="v9"), WANTED, now_us=9)
    assert resume.discards
    assert "'v9'" in resume.changes[0]
    assert resume.state == BuildState(format=STATE_FORMAT, started_us=9, identity=WANTED)


@given(row_count=st.integers(0, 500), shard_rows=st.integers(1, 60))
def test_shards_cover_every_row_once(row_count: int, shard_rows: int) -> None:
    shards = plan_shards(row_count, shard_rows)
    assert [row for shard in shards for row in range(shard.start, shard.stop)] == list(
        range(row_count)
    )


@pytest.mark.parametrize(
    ("row_count", "nlist"),
    [
        *((1, 1), (50_000, 1), (50_001, 13), (200_000, 49), (500_000, 123), (500_001, 3_000)),
        *((1_000_000, 4_000), (5_400_000, 9_000), (10**8, 40_000)),
    ],
)
def test_nlist_is_one_then_a_cluster_for_4096_rows_then_four_times_their_root_to_one_digit(
    row_count: int, nlist: int
) -> None:
    assert default_nlist(row_count) == nlist


@pytest.mark.parametrize(
    ("row_count", "nlist", "nprobe"),
    [
        *((50_000, 1, 1), (200_000, 49, 49), (500_000, 120, 120)),
        *((16_000, 2, 2), (16_000, 100, 48), (200_000, 2000, 212)),
        *((1_000_000, 4, 4), (1_000_000, 100, 48), (1_000_000, 4000, 300)),
    ],
)
def test_nprobe_is_all_clusters_by_default_for_few_rows_and_else_follows_the_root_of_nlist(
    row_count: int, nlist: int, nprobe: int
) -> None:
    assert default_nprobe(row_count, nlist) == nprobe


# ---- how many rows are sampled, and which clusters one pass collects


def test_a_sample_is_bounded_by_what_is_wished_what_there_is_and_what_fits() -> None:
    assert sample_rows_max(10_000, 10, dimension=4, rows_per_cluster=100, bytes_max=1 << 20) == 1000
    assert sample_rows_max(700, 10, dimension=4, rows_per_cluster=100, bytes_max=1 << 20) == 700
    assert sample_rows_max(10_000, 10, dimension=4, rows_per_cluster=100, bytes_max=800) == 50
    with pytest.raises(ValueError, match="9 rows cannot train 10 clusters"):
        sample_rows_max(10_000, 10, dimension=4, rows_per_cluster=100, bytes_max=159)


@given(
    counts=st.lists(st.integers(0, 3000), min_size=1, max_size=50),
    spare_bytes=st.integers(0, 1 << 20),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_passes_cover_every_cluster_once_in_order_and_none_outgrows_memory(
    counts: list[int], spare_bytes: int, dtype: str
) -> None:
    layout = choose_layout(48, dtype)  # type: ignore[arg-type]
    least_bytes = memory_min_bytes(layout, counts)
    passes = plan_passes(layout, counts, memory_bytes=least_bytes + spare_bytes)
    assert [position for taken in passes for position in taken] == list(range(len(counts)))

    def used_bytes(positions: range) -> int:
        held_bytes = sum(pass_bytes(layout, counts[position]) for position in positions)
        return held_bytes + max(encode_bytes(layout, counts[position]) for position in positions)

    assert all(used_bytes(taken) <= least_bytes + spare_bytes for taken in passes)
    for taken, following in itertools.pairwise(passes):
        assert used_bytes(range(taken.start, following.start + 1)) > least_bytes + spare_bytes
