"""One generation for one prompt, however work overlaps or is lost; every query ends once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.plan.reuse import is_reusable
from schemas.answer import Answer
from schemas.retrieval import Retrieval
from tests.generator.test_answer_dedup_properties import (
    Outcome,
    World,
    disturbances,
    looks,
    moves,
)

pytestmark = pytest.mark.usefixtures("tables_stepped_by_hand")


def key_of(retrieval: Retrieval) -> str | None:
    """Questions in capitals refuse to be answered again."""
    text = retrieval.query.text or ""
    return None if text.isupper() else f"key of {text}"


class Reuse(World):
    """A world of prompts with keys."""

    def __init__(self) -> None:
        super().__init__(key_of)

    def at_work(self) -> list[str]:
        """The keys of the prompts that are generated now."""
        keys = (key_of(unit.record) for unit in self.within.units.values())
        return [key for key in keys if key is not None]

    def check(self) -> None:
        super().check()
        keys = self.at_work()
        assert len(keys) == len(set(keys)), "one generation for one prompt"

    def all_answers(self) -> list[Answer]:
        return [answer for answers in self.answers().values() for answer in answers]

    def settle(self) -> None:
        super().settle()
        assert self.complete == set(range(len(self.records)))
        assert not self.stage._reuse._queries, "no query is left"
        assert not self.stage._reuse._by_key and not self.stage._reuse._leader_of


publishes = st.tuples(
    st.just("publish"),
    st.sampled_from(["a", "b", "c", "d", "e", "f"]),
    st.sampled_from(["why?", "why?", "who?", "WHO?"]),
    st.sampled_from(["ok", "ok", "partial", "failed", "retried"]),
)
crashes = st.just(("dies",))


def check_answers(world: Reuse) -> None:
    """Each record ends once, by its own outcome or an answer that its prompt or its id has."""
    for offset, answers in world.answers().items():
        assert len(answers) == 1, "a record has one answer"
        (answer,), record = answers, world.records[offset]
        assert answer.query_id == record.retrieval.query.query_id
        if answer.error is not None:
            assert answer.error.type == "conflict"
        elif not answer.replayed:
            assert (answer.status, answer.answer) == (record.outcome, f"made for {offset}")
        else:
            made_for = int(str(answer.answer).rpartition(" ")[2])
            first = world.records[made_for].retrieval.query
            assert answer.status == world.records[made_for].outcome in ("ok", "partial")
            assert first.text == record.retrieval.query.text, "an equal prompt"
            assert key_of(record.retrieval) or first.query_id == answer.query_id
    answered = set(world.answers())
    for offset, record in enumerate(world.records):
        assert offset in answered or record.outcome == "retried"


def opened(first: Sequence[tuple[str, str, str, Outcome]]) -> Reuse:
    world = Reuse()
    for _, query_id, text, outcome in first:
        world.publish(query_id, text, outcome)
    world.assign_all()
    world.follow()
    return world


firsts = st.lists(publishes, min_size=3, max_size=8)


@settings(max_examples=150)
@given(
    firsts,
    st.lists(
        st.one_of(publishes, moves, moves, moves, looks, looks, disturbances),
        min_size=10,
        max_size=60,
    ),
)
def test_every_query_ends_once_by_its_own_answer_or_that_of_an_equal_prompt(
    first: list[tuple[str, str, str, Outcome]], script: list[tuple[object, ...]]
) -> None:
    world = opened(first)
    world.run(script)
    world.settle()
    check_answers(world)


@settings(max_examples=150)
@given(
    firsts,
    st.lists(st.one_of(publishes, moves, moves, looks, crashes), min_size=10, max_size=60),
)
def test_a_prompt_with_an_answer_is_not_generated_again_also_after_a_crash(
    first: list[tuple[str, str, str, Outcome]], script: list[tuple[object, ...]]
) -> None:
    world = opened(first)
    world.run(script)
    world.settle()
    check_answers(world)
    made = Counter(answer.prompt_key for answer in world.all_answers() if is_reusable(answer))
    assert set(made.values()) <= {1}, made
