"""Equal prompts behind the real loop: one generation, and none that serves another tenant."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from carpool.loop.stage import Unit
from generator.prompts import load_templates, prepare_prompt, reusable_key
from generator.settings import GeneratorSettings
from schemas.query import Generation
from schemas.retrieval import Retrieval
from tests.generator.stage import unit
from tests.generator.test_answer_dedup_through_the_loop import (
    Service,
    answers,
    committed,
    delivery,
    make_broker,
    publish,
)
from tests.records import some_hits

__all__ = ["delivery"]

ACME, OTHER = (("rag-tenant", b"acme"),), (("rag-tenant", b"other"),)


def asked(delivery: str, *units: Unit[Retrieval], **settings: Any) -> tuple[int, Counter[bool]]:
    """Returns how many prompts were sent, and how many answers are replayed."""
    broker = make_broker()
    publish(broker, *units)
    service = Service(broker, delivery, settings=GeneratorSettings(**settings))
    service.turn(lambda: committed(broker) == len(units))
    service.crash()
    found = answers(broker)
    assert Counter(each.source for each in found) == {one.record.source: 1 for one in units}
    assert {each.status for each in found} == {"ok"}
    service.stage.check_integrity()
    return len(service.engine.requests), Counter(each.replayed for each in found)


def test_equal_prompts_of_different_ids_are_generated_once(delivery: str) -> None:
    assert asked(delivery, *(unit("why?") for _ in range(20))) == (1, {False: 1, True: 19})


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "tenant": [{"headers": ACME}, {"headers": OTHER}, {"headers": ()}],
    "index version": [{"index_version": "v7"}, {"index_version": "v8"}],
    "template": [{"query": {"generation": Generation(template=name)}} for name in ("one", "two")],
    "tokens": [{"query": {"generation": Generation(max_tokens=n)}} for n in (100, 101)],
    "seed": [{"query": {"generation": Generation(seed=n)}} for n in (1, 2)],
    "passages": [{"found": some_hits(1)}, {"found": some_hits(2)}],
}


@pytest.mark.parametrize("name", VARIANTS)
def test_no_answer_is_given_across(
    name: str, delivery: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("templates")
    for template, system in (("one", "Answer."), ("two", "Answer well."), ("cited", "Cite.")):
        content = (
            f"[system]\n{system}\n[user]\n{{{{passages}}}}\n{{{{question}}}}\n"
            "[passage]\n[{{n}}] {{title}} {{text}}\n[nothing_found]\nNothing.\n"
        )
        (folder / f"{template}.txt").write_text(content)
    kinds = VARIANTS[name]
    units = [unit("why?", **kinds[n % len(kinds)]) for n in range(3 * len(kinds))]
    sent, replays = asked(delivery, *units, template_dir=str(folder))
    assert sent == len(kinds)
    assert replays == {False: len(kinds), True: 2 * len(kinds)}


def test_the_model_is_part_of_the_key() -> None:
    settings, record = GeneratorSettings(), unit("why?").record
    prepared = prepare_prompt(record, settings, load_templates(settings))
    keys = {reusable_key(record, prepared, settings, model) for model in ("a", "b")}
    assert len(keys) == 2 and None not in keys


@pytest.mark.parametrize(
    "refused",
    [
        {"query": {"generation": Generation(reuse=False)}},
        {"query": {"generation": Generation(temperature=0.7)}},
    ],
    ids=["by the query", "a temperature without a seed"],
)
def test_a_prompt_that_cannot_be_reused_is_generated_each_time(
    refused: dict[str, Any], delivery: str
) -> None:
    assert asked(delivery, *(unit("why?", **refused) for _ in range(4))) == (4, {False: 4})


def test_a_temperature_with_a_seed_is_reused(delivery: str) -> None:
    wishes = {"query": {"generation": Generation(temperature=0.7, seed=3)}}
    assert asked(delivery, *(unit("why?", **wishes) for _ in range(4)))[0] == 1


def test_reuse_can_be_switched_off(delivery: str) -> None:
    assert asked(delivery, *(unit("why?") for _ in range(4)), reuse=False)[0] == 4


def test_a_successor_gives_answers_that_its_predecessor_generated(delivery: str) -> None:
    broker = make_broker()
    publish(broker, unit("why?"))
    first = Service(broker, delivery)
    first.turn(lambda: committed(broker) == 1)
    first.crash()
    publish(broker, *(unit("why?") for _ in range(6)))
    second = Service(broker, delivery)
    second.turn(lambda: committed(broker) == 7)
    second.crash()
    assert second.engine.requests == []
    assert Counter(each.replayed for each in answers(broker)) == {False: 1, True: 6}


def test_an_id_that_was_answered_by_reuse_is_replayed_like_any_other(delivery: str) -> None:
    broker = make_broker()
    publish(broker, unit("why?"), unit("why?", query={"query_id": "q"}))
    service = Service(broker, delivery)
    service.turn(lambda: committed(broker) == 2)
    publish(broker, unit("why?", query={"query_id": "q"}), unit("who?", query={"query_id": "q"}))
    service.turn(lambda: committed(broker) == 4)
    service.crash()
    assert len(service.engine.requests) == 1
    assert Counter(each.status for each in answers(broker)) == {"ok": 3, "failed": 1}


def test_the_end_of_a_service_waits_for_followers_too(delivery: str) -> None:
    broker = make_broker()
    publish(broker, *(unit("why?") for _ in range(6)))
    service = Service(broker, delivery)
    service.turn(lambda: service.loop.in_flight.units + committed(broker) == 6)
    service.loop.drain(service.loop.last_step_us + 30_000_000)
    service.loop.close()
    assert committed(broker) == 6
    assert len(service.engine.requests) == 1
