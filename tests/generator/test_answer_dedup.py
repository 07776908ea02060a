"""The planner of the answer dedup: what becomes of a query, by what the log of answers shows.

Commands of its transcripts: `arrive UNIT source=N`, `end UNIT` (with an answer), `log OFFSET
source=N`, `read PARTITION`, `gone UNIT OFFSET`, `delete ID`, `expire TIME`, `revoke UNIT...`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from generator.plan.answer_dedup import AnswerDedup
from generator.plan.dedup_actions import DedupAction, DedupQuery, EndWait, ReplayAnswer
from generator.plan.query_digest import query_digest
from generator.plan.recent import Recent
from schemas.answer import Answer
from schemas.query import EarlierMessage, Generation
from schemas.record import Source
from tests.records import a_query, a_source, an_answer
from tests.transcripts import Execute

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("dedup_*.txt"))
Options = Mapping[str, str]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_dedup_transcript(path: Path, check_transcript: Callable[[Path, Execute], None]) -> None:
    check_transcript(path, DedupTranscript().execute)


class DedupTranscript:
    """Executes the commands of one transcript. Partition 0 is assigned from the beginning."""

    def execute(self, command: str) -> list[str]:
        """Returns the actions of a command, one a line, and the state."""
        kind, *words = command.split()
        if kind == "new":
            self.dedup = AnswerDedup(ids_max=1_000)
            self.dedup.assigned([0], 0)
            return []
        arguments = [word for word in words if "=" not in word]
        options = dict(word.split("=") for word in words if "=" in word)
        actions = self._step(kind, arguments, options)
        self.dedup.check_integrity()
        unread = " ".join(map(str, sorted(self.dedup.unread))) or "none"
        state = f"unread: {unread}, handed over: {self.dedup.states['handed_over']}"
        return [*map(_action, actions), state]

    def _step(self, kind: str, arguments: list[str], options: Options) -> tuple[DedupAction, ...]:
        dedup, numbers = self.dedup, [int(word) for word in arguments if word.isdigit()]
        match kind:
            case "arrive":
                return dedup.arrived(_query(numbers[0], options))
            case "end":
                dedup.handed_over(numbers[0])
            case "log":
                return dedup.seen(_logged(options), 0, numbers[0])
            case "read":
                return dedup.read(numbers[0])
            case "gone":
                return dedup.gone(numbers[0], offset=numbers[1])
            case "expire":
                return dedup.expired(numbers[0])
            case "revoke":
                return dedup.revoked(numbers)
            case "assign":
                dedup.assigned(numbers, 0)
            case "delete":
                dedup.deleted(arguments[0])
            case _:
                raise ValueError(f"no command {kind!r}")
        return ()


def _action(action: DedupAction) -> str:
    if isinstance(action, EndWait):
        return f"{action.what} {action.unit_id}"
    assert isinstance(action, ReplayAnswer)
    return f"replay {action.unit_id} {action.partition} {action.offset}"


def _source(options: Options) -> Source:
    offset = int(options["source"])
    return a_source(offset, timestamp_ms=int(options.get("timestamp", 1_000 + offset)))


def _query(unit_id: int, options: Options) -> DedupQuery:
    return DedupQuery(
        unit_id=unit_id,
        query_id=options.get("id", "q"),
        source=_source(options),
        digest=options.get("digest", "d"),
        partition=int(options.get("partition", 0)),
        deadline_us=int(options["deadline"]) if "deadline" in options else None,
    )


def _logged(options: Options) -> Answer:
    return an_answer(
        options.get("id", "q"),
        options.get("status", "ok"),
        source=_source(options),
        query_digest=options.get("digest", "d") or None,
    )


def test_a_dictionary_of_recent_entries_never_has_more_than_its_maximum() -> None:
    recent: Recent[int, int] = Recent(10)
    for n in range(1_000):
        recent.put(n, n)
        assert len(recent._young) + len(recent._old) <= 10
        assert all(recent.get(m) == m and m in recent for m in range(max(0, n - 4), n + 1))
    recent.discard(999)
    assert 999 not in recent


def test_a_digest_depends_on_the_question_and_not_on_its_urgency_or_the_order_of_its_filter() -> (
    None
):
    question = a_query("a", top_k=3)
    for same in (
        a_query("b", top_k=3),
        a_query("a", top_k=3, deadline=5, priority=-3),
        a_query("a", top_k=3, vector=b"\0\0\0\0"),
        a_query("a", top_k=3, generation=Generation()),
    ):
        assert query_digest(same) == query_digest(question)
    others: list[dict[str, Any]] = [
        {"text": "why? "},
        {"top_k": None},
        {"nprobe": 4},
        {"tenant": "t"},
        {"filter": {"lang": "en"}},
        {"embedding_model": "m"},
        {"conversation_id": "c"},
        {"generation": Generation(seed=1)},
        {"search_mode": "exact"},
        {"instructions": "Be brief."},
        {"messages": (EarlierMessage(role="user", text="Hi."),)},
        {"passages": True},
    ]
    for fields in others:
        assert query_digest(a_query("a", **{"top_k": 3, **fields})) != query_digest(question)
    one, two = a_query(filter={"a": 1, "b": 2}), a_query(filter={"b": 2, "a": 1})
    assert query_digest(one) == query_digest(two)
