"""Which answer is mine: traces, and thousands of random ones against the obvious rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from producers.match_answers import ExpectedAnswers, PartialText, Place, Ticket
from schemas.answer import Answer, PartialAnswer, StepDone
from tests.records import a_source, an_answer


def answer(query_id: str, place: Place | None = None) -> Answer:
    source = None if place is None else a_source(place[1], partition=place[0])
    return an_answer(query_id, source=source)


def test_where_the_broker_does_not_report_the_place_the_id_decides() -> None:
    waiting = ExpectedAnswers()
    ticket = waiting.expect("q")
    assert waiting.placed(ticket, None) is None
    assert waiting.answered(answer("q", (0, 1))) == (ticket,)


def test_an_answer_without_a_source_goes_to_all_asks_with_its_id() -> None:
    waiting = ExpectedAnswers()
    tickets = (waiting.expect("q"), waiting.expect("q"))
    waiting.expect("other")
    assert waiting.answered(answer("q")) == tickets


@dataclass
class _Asked:
    ticket: Ticket
    query_id: str
    place: Place
    is_acknowledged: bool = False
    arrived: list[Place] = field(default_factory=list)


class AnswersInAnyOrder(RuleBasedStateMachine):
    """Asks, acknowledgements and answers interleave at will; each ask gets the answer to its own
    record, once.
    """

    asks: Bundle[_Asked] = Bundle("asks")

    def __init__(self) -> None:
        super().__init__()
        self.waiting = ExpectedAnswers()
        self.offset = 0
        self.open: dict[Ticket, _Asked] = {}

    @rule(target=asks, query_id=st.sampled_from(["a", "b"]))
    def ask(self, query_id: str) -> _Asked:
        self.offset += 1
        asked = _Asked(self.waiting.expect(query_id), query_id, (0, self.offset))
        self.open[asked.ticket] = asked
        return asked

    @rule(asked=asks)
    def acknowledge(self, asked: _Asked) -> None:
        if asked.ticket not in self.open or asked.is_acknowledged:
            return
        asked.is_acknowledged = True
        got = self.waiting.placed(asked.ticket, asked.place)
        assert (got is not None) == (asked.place in asked.arrived)
        if got is not None:
            self.finish(asked)

    @rule(asked=asks)
    def answer_comes(self, asked: _Asked) -> None:
        tickets = self.waiting.answered(answer(asked.query_id, asked.place))
        expected = [
            other.ticket
            for other in self.open.values()
            if other.is_acknowledged and other.place == asked.place
        ]
        assert list(tickets) == expected
        for other in self.open.values():
            if other.query_id == asked.query_id and not other.is_acknowledged:
                other.arrived = [*other.arrived, asked.place][-16:]
        for ticket in tickets:
            self.finish(self.open[ticket])

    @rule(asked=consumes(asks))
    def give_up(self, asked: _Asked) -> None:
        self.finish(asked)

    def finish(self, asked: _Asked) -> None:
        self.waiting.forget(asked.ticket)
        self.open.pop(asked.ticket, None)

    @invariant()
    def the_books_agree(self) -> None:
        self.waiting.check_integrity()
        assert len(self.waiting) == len(self.open)


TestAnswersInAnyOrder = AnswersInAnyOrder.TestCase


def piece(seq: int, text: str, generation: str = "g1") -> PartialAnswer:
    return PartialAnswer(query_id="q", generation_id=generation, seq=seq, text=text)


def test_pieces_that_are_repeated_or_late_are_no_news() -> None:
    text = PartialText()
    assert [
        text.add(each)
        for each in (piece(0, "In "), piece(0, "In "), piece(1, "1785"), piece(0, "In "))
    ] == [True, False, True, False]
    assert text.text == "In 1785"


def test_finished_steps_are_news_once_and_no_text() -> None:
    def step(seq: int) -> PartialAnswer:
        done = StepDone(n=seq + 1, kind="generate", text="Who?")
        return PartialAnswer(query_id="q", generation_id="s", seq=seq, text="", step=done)

    text = PartialText()
    taken = [step(0), step(2), step(2), piece(0, "In "), step(1), step(3), piece(1, "1785")]
    assert [text.add(each) for each in taken] == [True, True, False, True, False, True, True]
    assert text.text == "In 1785"


def test_a_new_generation_discards_the_text_and_the_old_one_does_not_come_back() -> None:
    text = PartialText()
    text.add(piece(0, "Wrong"))
    assert text.add(piece(0, "Right", "g2"))
    assert not text.add(piece(1, " again"))
    assert text.text == "Right"
