"""Equal prompts in the answer dedup: who is generated, who waits, and who gets an answer again."""

from __future__ import annotations

from typing import Any

from generator.plan.answer_dedup import AnswerDedup
from generator.plan.dedup_actions import DedupAction, DedupQuery, EndWait, Hasten, ReplayAnswer
from generator.prompts import load_templates, prepare_prompt, reusable_key
from generator.settings import GeneratorSettings
from schemas.answer import AnswerError
from schemas.query import Generation
from tests.generator.stage import unit
from tests.records import a_source, an_answer, some_hits


class Checked:
    """A planner whose books are checked after every call."""

    def __init__(self) -> None:
        self.plan = AnswerDedup(ids_max=1_000)

    def arrive(self, unit_id: int, key: str = "k", **more: Any) -> tuple[DedupAction, ...]:
        query = DedupQuery(
            unit_id=unit_id,
            query_id=more.pop("query_id", f"q-{unit_id}"),
            source=a_source(unit_id),
            digest="d",
            partition=3,
            prompt_key=key,
            **more,
        )
        return self._checked(self.plan.arrived(query))

    def end(self, unit_id: int) -> None:
        self.plan.handed_over(unit_id)
        self._checked(())

    def log(
        self, unit_id: int, offset: int = 9, key: str | None = "k", **more: Any
    ) -> tuple[DedupAction, ...]:
        answer = an_answer(f"q-{unit_id}", source=a_source(unit_id), prompt_key=key, **more)
        return self._checked(self.plan.seen(answer, 3, offset))

    def _checked(self, actions: tuple[DedupAction, ...]) -> tuple[DedupAction, ...]:
        self.plan.check_integrity()
        return actions


def generated(unit_id: int) -> EndWait:
    return EndWait(unit_id=unit_id, what="generate")


DAMAGED = AnswerError(type="index_damaged", message="m", retryable=True, stage="searcher")


def given(unit_id: int, offset: int = 9) -> ReplayAnswer:
    return ReplayAnswer(unit_id=unit_id, partition=3, offset=offset)


def test_a_leader_without_an_answer_is_followed_by_the_most_urgent_follower() -> None:
    for lost in ("failed", "revoked", "expired"):
        reuse = Checked()
        reuse.arrive(1)
        reuse.arrive(2)
        reuse.arrive(3, priority=-1)
        if lost == "revoked":
            actions = reuse.plan.revoked([1])
        else:
            reuse.end(1)
            actions = reuse.log(1, status=lost)
        assert actions == (generated(3),), lost
        reuse.end(3)
        assert reuse.log(3) == (given(2),)


def test_a_leader_is_hastened_for_a_follower_that_is_more_urgent() -> None:
    reuse = Checked()
    reuse.arrive(1, priority=5)
    assert reuse.arrive(2, priority=5) == ()
    assert reuse.arrive(3, priority=5, deadline_us=900) == (
        Hasten(unit_id=1, priority=5, deadline_us=900),
    )
    assert reuse.arrive(4, priority=5, deadline_us=950) == ()
    assert reuse.arrive(5, priority=2) == (Hasten(unit_id=1, priority=2, deadline_us=None),)
    assert reuse.arrive(6, priority=2) == ()


def test_a_follower_ends_at_its_own_deadline_and_the_leader_goes_on() -> None:
    reuse = Checked()
    reuse.arrive(1)
    reuse.arrive(2, deadline_us=100)
    assert reuse.plan.expired(99) == ()
    assert reuse.plan.expired(100) == (generated(2),)
    reuse.end(2)
    reuse.end(1)
    assert reuse.log(1) == ()
    assert reuse.arrive(3, deadline_us=200) == (given(3),)
    assert reuse.plan.expired(200) == (generated(3),), "its answer came too late"
    reuse.plan.check_integrity()


def test_text_that_was_cut_off_is_given_again_and_nothing_with_an_error() -> None:
    reuse = Checked()
    reuse.log(1, status="partial")
    assert reuse.arrive(2) == (given(2),)
    for n, more in enumerate(
        (
            {"status": "failed"},
            {"status": "expired"},
            {"replayed": True},
            {"key": None},
            {"status": "partial", "error": DAMAGED},
        )
    ):
        reuse = Checked()
        reuse.log(10 + n, **more)
        assert reuse.arrive(2) == (generated(2),), more


def test_a_stored_answer_that_is_gone_is_generated_once_more() -> None:
    reuse = Checked()
    reuse.log(1)
    assert reuse.arrive(2) == (given(2),)
    assert reuse.arrive(3) == (given(3),)
    entry = reuse.plan.fetching(2)
    assert entry is not None and entry.key == "k"
    assert reuse.plan.gone(2, 9) == (generated(2),)
    assert reuse.plan.gone(3, 9) == (), "it follows now"
    assert reuse.plan.fetching(3) is None
    reuse.end(2)
    assert reuse.log(2, offset=12) == (given(3, 12),)


def test_a_deleted_answer_is_given_to_nobody_else() -> None:
    reuse = Checked()
    reuse.log(1)
    reuse.plan.deleted("q-7")
    assert reuse.arrive(2) == (given(2),)
    reuse.plan.deleted("q-1")
    assert reuse.arrive(3) == (generated(3),)


def key_of(text: str = "why?", *, reuse: bool = True, model: str = "m", **given: Any) -> str | None:
    settings = GeneratorSettings(reuse=reuse)
    record = unit(text, **given).record
    prepared = prepare_prompt(record, settings, load_templates(settings))
    return reusable_key(record, prepared, settings, model)


def asking(**wishes: Any) -> dict[str, Any]:
    return {"query": {"generation": Generation(**wishes)}}


def test_no_answer_is_given_across_tenants_requests_models_or_passages() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"text": "who?"},
        {"model": "n"},
        {"headers": (("rag-tenant", b"acme"),)},
        {"headers": (("rag-tenant", b"other"),)},
        {"query": {"tenant": "acme"}},
        {"query": {"instructions": "Be brief."}},
        {"found": some_hits(1)},
        asking(max_tokens=100),
        asking(seed=1),
        asking(temperature=0.7, seed=1),
    ]
    keys = [key_of(**each) for each in variants]
    assert None not in keys and len(set(keys)) == len(variants)
    assert key_of(index_version="v8") == keys[0], "the passages are what counts"
    assert keys == [key_of(**each) for each in variants]


def test_what_cannot_be_given_again_has_no_key() -> None:
    assert key_of(reuse=False) is None
    for given in (asking(reuse=False), asking(temperature=0.7), {"skipped_clusters": (4,)}):
        assert key_of(**given) is None
