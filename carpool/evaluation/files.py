"""The files of an evaluation: questions with what is known of them, answers, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from carpool.errors import ConfigError
from carpool.evaluation.judging import Gold
from carpool.evaluation.report import Report
from carpool.foreign_files import refuse_foreign
from schemas.batch import AnswerLine

T = TypeVar("T")
TEMPLATE = Path(__file__).with_name("report.html")


def read_gold(path: Path) -> dict[int, Gold]:
    """Returns what is known of each question, by number of line.

    A line that is no question is left out, as a batch refuses it. Raises `ConfigError`.
    """
    gold = dict(_lines(path, Gold))
    if not gold:
        raise ConfigError(f"{path} has no question as a JSON line")
    return gold


def read_answers(path: Path, gold: dict[int, Gold]) -> dict[int, AnswerLine]:
    """Returns the last answer of each line of the questions `gold`.

    Half a line at the end, of a run that was killed, is ignored. Raises `ConfigError` for another
    bad line, and for answers to other questions.
    """
    answers = dict[int, AnswerLine]()
    for number, answer in _lines(path, AnswerLine):
        asked = gold.get(answer.line)
        texts = [asked and (asked.text or asked.question), answer.question]
        if asked is None or len({" ".join(each.split()) for each in texts if each}) > 1:
            raise ConfigError(
                f"{path}:{number}: line {answer.line} of the questions is {texts[0]!r}, and this "
                f"answers {texts[1]!r}: name the file that was asked"
            )
        answers[answer.line] = answer
    if not answers:
        raise ConfigError(f"{path} has no answer")
    return answers


def _lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Yields number and content of each line that is not blank; no half line of answers."""
    decoder = msgspec.json.Decoder(kind)
    try:
        refuse_foreign(path)
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    found = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if kind is AnswerLine and line.endswith(b"\n"):
                        raise ConfigError(f"{path}:{number}: {error}") from error
                else:
                    yield number, found
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def write_page(report: Report, path: Path) -> None:
    """Writes a page without scripts, where whatever an answer says is text; needs Jinja2.

    Raises `ConfigError` where that fails.
    """
    from jinja2 import Environment, StrictUndefined

    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(TEMPLATE.read_text(encoding="utf-8"))
    try:
        path.write_text(page.render(report=report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
