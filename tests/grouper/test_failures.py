"""The grouper as a stage: what expires, is refused, or breaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import CachedEmbedder
from carpool.errors import ConfigError
from grouper.embed import KNOWN_GOOD_TEXT, embed_texts
from grouper.plan.plan_groups import Groups
from schemas.answer import Answer
from schemas.codec import decode
from schemas.record import header
from schemas.topics import GROUPS, RETRIEVALS
from tests.clocks import NOW_US
from tests.grouper.stage import DIMENSION, EMBEDDER, Gate, running
from tests.waiting import wait_until


def test_an_expired_query_gets_its_terminal_answer_and_is_not_embedded(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        gate.opened.release()
        (late,) = rig.offer("ada", deadline=NOW_US // 1_000)
        (fine,) = rig.offer("bell", deadline=NOW_US // 1_000 + 1)
        rig.tick()
        rig.settled(2)
        assert gate.batches == [["bell"]]
        expired = next(done for done in rig.sink.dones if done.parts == ((late.id, 0),))
        (output,) = expired.outputs
        assert (output.topic, output.key, output.partition) == (RETRIEVALS.name, b"q-1", None)
        assert header(output.headers, "ce_id") == f"{late.source.record}/answer".encode()
        assert header(output.headers, "traceparent") == b"00-1"
        answer = decode(Answer, output.value, output.headers)
        assert (answer.query_id, answer.status, answer.source) == ("q-1", "expired", late.source)
        assert answer.error is not None
        error = answer.error
        assert (error.type, error.stage, error.retryable) == ("expired", "grouper", True)
        (grouped,) = rig.sink.groups[0].queries
        assert grouped.source == fine.source
        assert expired.early == "expired"


def test_a_query_that_expires_while_it_is_embedded_is_not_searched(tmp_path: Path) -> None:
    gate = Gate()
    with running(tmp_path, embedder=gate) as rig:
        rig.offer("ada", deadline=NOW_US // 1_000 + 5)
        rig.offer("bell")
        rig.tick()
        wait_until(lambda: len(gate.batches) == 1)
        rig.clock.time_us += 5_000
        gate.opened.release()
        rig.settled(2)
        assert [done.outputs[0].topic for done in rig.sink.dones] == [RETRIEVALS.name, GROUPS.name]


def test_a_text_that_the_model_fails_on_is_refused_and_its_window_goes_on(tmp_path: Path) -> None:
    class Choking(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if "bell" in texts:
                raise RuntimeError("token out of range")
            return super().encode(texts)

    with running(tmp_path, embedder=Choking(DIMENSION)) as rig:
        rig.offer("ada", "bell", "curie")
        rig.tick()
        rig.settled(2)
        (refusal,) = rig.sink.refusals
        unit, error = refusal
        assert (unit.id, error.reason, error.query_id) == (2, "processing_failed", "q-2")
        assert "token out of range" in str(error)
        assert sorted(rig.sink.acknowledged) == [1, 3]
        found = [query for group in rig.sink.groups for query in group.queries]
        assert {query.query.query_id: query.vector for query in found} == {
            "q-1": EMBEDDER.encode(["ada"]).tobytes(),
            "q-3": EMBEDDER.encode(["curie"]).tobytes(),
        }


def test_a_model_that_is_broken_altogether_stops_the_service_and_refuses_nothing(
    tmp_path: Path,
) -> None:
    class Broken(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            raise RuntimeError("out of memory")

    with running(tmp_path, embedder=Broken(DIMENSION)) as rig:
        rig.offer("ada", "bell")
        rig.tick()
        wait_until(lambda: bool(rig.sink.failures))
        assert isinstance(rig.sink.failures[0], ConfigError)
        assert "out of memory" in str(rig.sink.failures[0])
        assert (rig.sink.refusals, rig.sink.dones) == ([], [])


def test_queries_that_cannot_be_planned_together_are_planned_alone(tmp_path: Path) -> None:
    def faulty(clusters: Sequence[Sequence[int]], deadlines: Sequence[int]) -> Groups:
        if len(clusters) > 1:
            raise ZeroDivisionError("a defect")
        return ((0,),)

    with running(tmp_path, policy=faulty) as rig:
        rig.offer("ada", "bell")
        rig.tick()
        wait_until(lambda: len(rig.sink.groups) == 2)
        assert rig.sink.charged == []


# ---- what a model gives for a text must be a vector; the stage tests what happens if it fails


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), 0.0])
def test_a_vector_that_has_no_direction_counts_as_failed(fault: float) -> None:
    class Faulty(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = super().encode(texts)
            rows[[text == "two" for text in texts]] = fault
            return rows

    one, two, three = embed_texts(CachedEmbedder(Faulty(8)), ["one", "two", "three"])
    expected = HashingEmbedder(8).encode(["one", "three"])
    assert np.array_equal([one, three], expected)
    assert "zero or not finite" in two


def test_a_model_that_gives_another_shape_is_broken() -> None:
    class Narrow(HashingEmbedder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return super().encode(texts)[:, :4]

    with pytest.raises(ConfigError, match=r"gave \(1, 4\) for 1 texts of dimension 8"):
        embed_texts(CachedEmbedder(Narrow(8)), ["one"])


def test_a_model_that_breaks_is_found_although_it_embedded_texts_of_the_window_before() -> None:
    class Breaking(HashingEmbedder):
        is_broken = False

        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return super().encode(texts) * (np.nan if self.is_broken else 1)

    model = Breaking(8)
    embedder = CachedEmbedder(model)
    embed_texts(embedder, ["one", KNOWN_GOOD_TEXT])
    model.is_broken = True
    with pytest.raises(ConfigError, match="embeds nothing any more"):
        embed_texts(embedder, ["one", "two"])
