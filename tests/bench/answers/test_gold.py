"""The gold questions are sound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.answers.gold import read_gold
from bench.data.evaluation import EvaluationData, read_passages
from carpool.evaluation.gold import has_gold

GOLD = read_gold()


def test_there_are_a_hundred_distinct_questions_on_distinct_passages_in_order() -> None:
    assert [gold.id for gold in GOLD] == [f"gold-{number:03}" for number in range(1, 101)]
    assert len({gold.question.casefold() for gold in GOLD}) == 100
    assert len({gold.passage for gold in GOLD}) == 100
    assert all(gold.question.endswith("?") for gold in GOLD)


def test_answers_are_few_short_and_not_given_away_by_the_question() -> None:
    for gold in GOLD:
        assert 1 <= len(gold.answers) <= 4, gold
        assert len(set(gold.answers)) == len(gold.answers), gold
        assert all(1 <= len(answer.split()) <= 5 for answer in gold.answers), gold
        assert not has_gold(gold.question, gold.answers), gold


@pytest.mark.data
def test_each_first_answer_stands_in_its_passage_and_none_in_the_title() -> None:
    data = EvaluationData(folder=Path(os.environ["CARPOOL_DATA"]))
    passages = {passage.doc_id: passage for passage in read_passages(data.corpus_path)}
    for gold in GOLD:
        passage = passages[gold.passage]
        assert gold.answers[0].casefold() in passage.text.casefold(), gold
        assert has_gold(passage.text, gold.answers[:1]), gold
        assert not has_gold(passage.title, gold.answers), gold
