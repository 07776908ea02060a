"""The audit of answers: status, text, passages, and answers that repeat another. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from schemas.answer import Answer

OK = "ok"
CANCELLED = "cancelled"


class AnswerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of answers.

    `generated`: `ok` answers that repeat no other. `reused`: ids that have only the answer to an
    equal prompt. `cancelled`: of questions that were withdrawn. `failed_wrongly`: answers that are
    not `ok` although the load did not make them fail, and did not withdraw them. `other_passages`:
    `ok` answers whose retrieved ids are not those of a run without faults. `other_texts`: answers
    whose text is not that of their question. `generated_again`: `ok` answers of an id beyond the
    first that are not a replay of it. `slowest_s`: the longest time from a question to its answer.
    """

    statuses: dict[str, int]
    generated: int
    replayed: int
    reused: int
    cancelled: int
    failed_as_meant: int
    failed_wrongly: int
    other_passages: int
    other_texts: int
    generated_again: int
    slowest_s: float


class AnswerAudit:
    """Takes every answer, in any order. The first answer to each input record counts."""

    def __init__(
        self,
        passages: Mapping[str, Sequence[str]],
        texts: Callable[[str], Iterable[str | None]],
        dead: Collection[str],
        withdrawn: Collection[str] = (),
    ) -> None:
        """`passages`: the right ids by query id. `texts`: returns the right texts of a query id.

        `dead`: ids that fail until they are replayed. `withdrawn`: ids that may end as `cancelled`.
        """
        self._withdrawn = frozenset(withdrawn)
        self._passages, self._texts = passages, texts
        self._dead = frozenset(dead)
        self._replays: set[str] = set()
        self._answers: dict[str, tuple[Answer, int]] = {}

    def replayed(self, record: str) -> None:
        """Notes an input record that replays a dead letter."""
        self._replays.add(record)

    def take(self, answer: Answer, written_ms: int) -> None:
        """Notes an answer. `written_ms`: epoch milliseconds."""
        if answer.source is not None:
            self._answers.setdefault(answer.source.place, (answer, written_ms))

    def _may_fail(self, record: str, answer: Answer) -> bool:
        if answer.status == CANCELLED:
            return answer.query_id in self._withdrawn
        return answer.query_id in self._dead and record not in self._replays

    def wrong(self) -> dict[str, list[str]]:
        """Returns the input records with a wrong answer, by what is wrong."""
        answers = {record: answer for record, (answer, _) in self._answers.items()}
        ok = {record: answer for record, answer in answers.items() if answer.status == OK}
        return {
            "failed without a cause in the load": [
                record
                for record, answer in answers.items()
                if answer.status != OK and not self._may_fail(record, answer)
            ],
            "other passages than without faults": [
                record
                for record, answer in ok.items()
                if [each.id for each in answer.retrieved]
                != list(self._passages.get(answer.query_id, ()))
            ],
            "another text than that of its question": [
                record
                for record, answer in answers.items()
                if (answer.answer is not None or record in ok)
                and answer.answer not in self._texts(answer.query_id)
            ],
            "generated again": _generated_again(ok),
        }

    def result(self) -> AnswerCounts:
        """Returns the counts."""
        failed, other, texts, again = self.wrong().values()
        answers = [answer for answer, _ in self._answers.values()]
        statuses = Counter(answer.status for answer in answers)
        cancelled = sum(
            each.status == CANCELLED and each.query_id in self._withdrawn for each in answers
        )
        ok = [each for each in answers if each.status == OK]
        own = {each.query_id for each in ok if not each.replayed}
        return AnswerCounts(
            statuses=dict(sorted(statuses.items())),
            generated=sum(not each.replayed for each in ok),
            replayed=sum(each.replayed for each in ok),
            reused=len({each.query_id for each in ok} - own),
            cancelled=cancelled,
            failed_as_meant=len(answers) - len(ok) - len(failed) - cancelled,
            failed_wrongly=len(failed),
            other_passages=len(other),
            other_texts=len(texts),
            generated_again=len(again),
            slowest_s=max(
                (
                    (written_ms - answer.source.timestamp_ms) / 1_000
                    for answer, written_ms in self._answers.values()
                    if answer.source is not None
                ),
                default=0.0,
            ),
        )


def _generated_again(ok: Mapping[str, Answer]) -> list[str]:
    by_id: dict[str, list[str]] = defaultdict(list)
    for record, answer in ok.items():
        by_id[answer.query_id].append(record)
    again: list[str] = []
    for records in by_id.values():
        first = [record for record in records if not ok[record].replayed]
        again += first[1:]
        text = ok[first[0] if first else records[0]].answer
        again += [each for each in records if ok[each].replayed and ok[each].answer != text]
    return again
