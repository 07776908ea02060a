"""Equal prompts at the stage in front of the generator's: what a follower gets, and when."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from carpool.kafka.records import TopicPartition
from carpool.loop.stage import Unit
from generator.plan.answer_dedup import OTHERS_READ_US_MAX
from schemas.answer import Answer, CacheUse, Citation, Retrieved, Usage
from schemas.codec import decode
from schemas.record import header
from schemas.retrieval import Retrieval
from schemas.topics import RETRIEVALS
from tests.clocks import NOW_US
from tests.generator.dedup_support import made
from tests.generator.stage import unit
from tests.generator.test_answer_dedup_stage import Bench, SlowReader
from tests.records import some_hits

NOW_MS = NOW_US // 1_000
HITS = some_hits()


def keyed(partitions: int = 1) -> Bench:
    bench = Bench(has_keys=True, partitions=partitions)
    bench.assign(*range(partitions))
    bench.follow()
    return bench


def answer_of(bench: Bench, one: Unit[Retrieval], status: str = "ok") -> None:
    """The model has answered, and the log shows it."""
    bench.within.finish(
        one.id,
        made(
            one.record,
            status,  # type: ignore[arg-type]
            "Because.",
            prompt_key=one.record.query.text,
            usage=Usage(input_tokens=100, output_tokens=20, cached_tokens=64),
            citations=(Citation(n=1, doc_id=HITS[0].doc_id, score=0.1),),
            retrieved=(Retrieved(id=HITS[0].doc_id, score=0.1),),
        ),
    )
    bench.commit()
    bench.follow()
    bench.follow()


def test_a_follower_gets_the_answer_as_its_own_with_nothing_computed() -> None:
    bench, first, second = keyed(), unit("why?"), unit("why?")
    bench.offer(first, second)
    assert list(bench.within.units) == [first.id]
    assert bench.stage.credit().records == bench.within.credit().records - 1
    answer_of(bench, first)
    (done,) = bench.sink.dones
    assert done.parts == ((second.id, 0),)
    answer, record = decode(Answer, done.outputs[0].value, done.outputs[0].headers), second.record
    assert (answer.status, answer.replayed, answer.answer) == ("ok", True, "Because.")
    assert (answer.query_id, answer.source) == (record.query.query_id, record.source)
    assert done.outputs[0].key == record.query.query_id.encode()
    assert header(done.outputs[0].headers, "traceparent") == b"00-1"
    assert answer.query_digest is not None and answer.prompt_key == "why?"
    assert answer.usage == Usage(reused_tokens=120)
    assert [each.id for each in answer.retrieved] == [hit.doc_id for hit in record.hits]
    assert answer.retrieved[0].in_prompt and not any(
        each.in_prompt for each in answer.retrieved[1:]
    )
    assert answer.citations[0].score == record.hits[0].score
    assert answer.cache == CacheUse(ram=1, ssd=1, bytes_read=4096)
    assert answer.timings_ms["total"] >= 0
    assert bench.decisions("reused") == 1
    labels = {"kind": "reused", "tenant": "none"}
    assert bench.metrics.registry.get_sample_value("carpool_tokens_total", labels) == 120
    bench.commit()
    bench.follow()
    third = unit("why?")
    bench.offer(third)
    bench.follow()
    assert bench.sink.answers[0].query_id == third.record.query.query_id, "from the log"


def test_an_answer_that_is_older_than_the_horizon_is_not_given_again() -> None:
    bench, first = keyed(), unit("why?")
    bench.offer(first)
    answer_of(bench, first)
    bench.clock.time_us += 86_400_000_000 + 1_000
    second = unit("why?")
    bench.offer(second)
    bench.follow()
    assert list(bench.within.units) == [second.id]


def test_a_follower_goes_on_where_its_leader_was_answered_in_a_partition_that_is_given_away() -> (
    None
):
    bench, leader, follower = keyed(partitions=2), unit("why?"), unit("why?")
    source = msgspec.structs.replace(leader.message.source, partition=1)
    leader = replace(leader, message=replace(leader.message, source=source))
    bench.offer(leader, follower)
    assert list(bench.within.units) == [leader.id]
    bench.within.finish(leader.id, made(leader.record, prompt_key="why?"))
    bench.sink.dones.clear()  # the last commit of the partition, which is read no more
    bench.stage.revoke(frozenset(), frozenset({TopicPartition(RETRIEVALS.name, 1)}))
    bench.follow()
    assert follower.id in bench.within.units
    assert bench.stage._plan.states["handed_over"] == 0, "nothing is counted for ever"


class LongPartition(SlowReader):
    """Partition 1 has answers that are not read yet."""

    def position(self, partition: int) -> int:
        return super().position(partition) - 10 * (partition == 1)


def test_units_of_a_read_partition_go_on_while_the_answers_of_another_are_read() -> None:
    bench, one = Bench(partitions=2, reader=LongPartition), unit("why?")
    bench.assign(0, 1)
    bench.offer(one)
    bench.follow()
    assert list(bench.within.units) == [one.id]
    assert bench.stage.credit().paused_partitions == {TopicPartition(RETRIEVALS.name, 1)}


def test_a_prompt_waits_for_the_answers_of_other_partitions_and_at_most_two_seconds() -> None:
    bench = Bench(has_keys=True, partitions=2, reader=LongPartition)
    known, one, other = unit("why?"), unit("why?"), unit("who?")
    bench.assign(0, 1)
    bench.follow()
    bench.offer(one)
    bench.clock.time_us += OTHERS_READ_US_MAX - 1
    bench.follow()
    assert not bench.within.units and not bench.sink.dones
    output = made(known.record, prompt_key="why?")
    value, headers = output.value, output.headers
    bench.broker.append(output.topic, value, key=output.key, headers=headers, partition=1)
    bench.follow()
    bench.clock.time_us += 1
    bench.offer(other)
    bench.follow()
    assert list(bench.within.units) == [other.id], "partition 1 is not read to its end"
    bench.follow()
    assert [answer.replayed for answer in bench.sink.answers] == [True]


def test_a_leader_is_hastened_for_the_interactive_class() -> None:
    bench, first = keyed(), unit("why?")
    source = msgspec.structs.replace(first.record.source, topic="rag.queries.batch.v1")
    batch = Unit(
        id=first.id,
        record=msgspec.structs.replace(first.record, source=source),
        message=first.message,
    )
    bench.offer(batch, unit("why?"))
    assert bench.within.hastened == [(first.id, 0, None)]
