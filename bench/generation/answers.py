"""`carpool bench answers`: are the answers right, and are they worth their tokens?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.accounting import Accounting, account
from bench.core.machine import this_revision
from bench.core.progress import Tell, progress_bars
from bench.generation.answer_figures import AnswerFigures, AskedRow, figures_of, without_markers
from bench.generation.cli import AnswersOptions
from bench.generation.gold import GOLD_FILE, GoldQuestion, has_gold, read_gold
from bench.generation.llm_server import LlmAddress, llm_server
from bench.services.corpus import CorpusRun, open_run
from bench.services.results import answers_of, final_retrievals
from carpool.errors import ConfigError
from carpool.settings import environment_name
from generator.plan.prompt import fitting_part
from generator.settings import GeneratorSettings
from producers.read_questions import Question
from schemas.answer import Answer
from schemas.retrieval import Retrieval
from schemas.topics import ANSWERS, RETRIEVALS

SERVICES = ("grouper", "searcher", "generator")
RATE_PER_S = 20.0
STALLED_S = 300.0
"""How long a model may write before the first, or the next, answer is there."""
SETTLE_S = 1.0
GOLD_MORE_MIN = 0.15
GOLD_WITH_QUOTE_MIN = 0.75
REPEATS_MAX = 0.05
BEYOND_TEXT_MAX = 0.15


class AnswersResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, with each question and its answer."""

    label: str
    llm_model: str
    accounting: Accounting
    figures: AnswerFigures
    rows: tuple[AskedRow, ...]


class _EarlierReport(msgspec.Struct, frozen=True):
    """What is read of an earlier run's JSON."""

    results: AnswersResult


def run(options: AnswersOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    earlier = read_earlier(options.beside) if options.beside is not None else None
    corpus = open_run("answers", options)
    gold = read_gold()[: options.limit]
    with (
        llm_server(options.llm_url, options.llm_model, options.llm, corpus.folder) as llm,
        progress_bars() as tell,
    ):
        result = measure(corpus, gold, llm, tell)
    return corpus.finish(
        lambda console: print_answers(console, [*filter(None, (earlier, result))]),
        promises=promises_of(result, earlier),
        results=result,
        **corpus.facts(GOLD_FILE),
    )


def measure(
    run: CorpusRun, gold: Sequence[GoldQuestion], llm: LlmAddress, tell: Tell
) -> AnswersResult:
    """Asks all questions and reads their answers. Blocks."""
    run.settings.setdefault(environment_name("llm", "model"), llm.model)
    if llm.is_own:  # as `carpool up` sets it
        run.settings.setdefault(environment_name("llm", "sends_priority"), "true")
    if llm.passages_max is not None:
        name = environment_name("generator", "passages_max")
        run.settings.setdefault(name, str(llm.passages_max))
    questions = [Question(id=each.id, text=each.question) for each in gold]
    with run.session(SERVICES, run.index, run.folder, llm_url=llm.url) as session:
        load = session.ask(
            questions,
            run.plan,
            rate_per_s=RATE_PER_S,
            topics=(ANSWERS.name,),
            stalled_s=STALLED_S,
            settle_s=SETTLE_S,
            on_seen=lambda done: tell("questions answered", done, len(questions)),
        )
        ids, recorder = load.sent.keys(), session.recorder
        answers = answers_of(recorder.records(ANSWERS.name), ids)
        found = final_retrievals(recorder.records(RETRIEVALS.name), ids)
    first = {answer.query_id: answer for answer in reversed(answers)}
    chars_max = _passage_chars_max(run.settings)
    rows = []
    for query_id, sent in load.sent.items():
        retrieval, _ = found.get(query_id, (None, 0))
        row = judge(gold[sent.row], first.get(query_id), retrieval, chars_max)
        if row.answer:
            count = llm.count_tokens(without_markers(row.answer))
            row = msgspec.structs.replace(row, text_tokens=count)
        rows.append(row)
    revision = this_revision()
    commit = "unknown" if revision is None else revision.commit[:10] + "+" * revision.is_modified
    return AnswersResult(
        label=run.options.label or commit,
        llm_model=llm.model,
        accounting=account(ids, (answer.query_id for answer in answers)),
        figures=figures_of(rows),
        rows=tuple(rows),
    )


def judge(
    gold: GoldQuestion, answer: Answer | None, retrieval: Retrieval | None, passage_chars_max: int
) -> AskedRow:
    """Returns the row of a question. A passage counts as it stood in the prompt, with its title."""
    row = AskedRow(
        question_id=gold.id,
        question=gold.question,
        status="none" if answer is None else answer.status,
    )
    if answer is None:
        return row
    given = {each.id for each in answer.retrieved if each.in_prompt}
    passages = [
        f"{hit.title}: {fitting_part(gold.question, hit.text, passage_chars_max)}"
        for hit in (retrieval.hits if retrieval else ())
        if hit.doc_id in given
    ]
    quote = "\n".join(each.text for each in answer.quotes)
    usage = answer.usage
    return msgspec.structs.replace(
        row,
        answer=answer.answer or "",
        quote=quote,
        cited=len(answer.citations),
        finish_reason=answer.finish_reason,
        gold_in_answer=has_gold(answer.answer or "", gold.answers),
        gold_in_quote=has_gold(quote, gold.answers),
        gold_in_prompt=any(has_gold(passage, gold.answers) for passage in passages),
        input_tokens=usage.input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
    )


def promises_of(result: AnswersResult, before: AnswersResult | None) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    figures = result.figures
    promises = {
        "each question has one terminal answer": result.accounting.holds,
        f"gold in answer or quote at least {GOLD_WITH_QUOTE_MIN}": (
            figures.gold_in_answer_or_quote.share >= GOLD_WITH_QUOTE_MIN
        ),
        f"repeats at most {REPEATS_MAX:.0%}": figures.repeats.share <= REPEATS_MAX,
    }
    if figures.beyond_text is not None:
        name = f"tokens beyond the text at most {BEYOND_TEXT_MAX:.0%}"
        promises[name] = figures.beyond_text <= BEYOND_TEXT_MAX
    if before is not None:
        name = f"gold in answer at least {GOLD_MORE_MIN} more than {before.label}"
        more = figures.gold_in_answer.share - before.figures.gold_in_answer.share
        promises[name] = more >= GOLD_MORE_MIN
    return promises


def read_earlier(path: Path) -> AnswersResult:
    """Returns the result in the JSON of an earlier run. Raises `ConfigError` that names it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_EarlierReport).results
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not the JSON of `carpool bench answers` ({error}); name a file that its "
            "--json wrote"
        ) from error


def print_answers(console: Console, results: Sequence[AnswersResult]) -> None:
    """Prints one column for each run."""
    table = Table("", *(each.label for each in results), title="Answers to gold questions")
    for name, texts in _lines([each.figures for each in results]).items():
        table.add_row(name, *texts)
    console.print(table)


def _lines(figures: Sequence[AnswerFigures]) -> Mapping[str, list[str]]:
    def each(name: str) -> list[str]:
        return [str(getattr(one, name)) for one in figures]

    return {
        "questions": each("questions"),
        "gold in answer": each("gold_in_answer"),
        "gold in answer or quote": each("gold_in_answer_or_quote"),
        "gold in the prompt's passages": each("gold_in_prompt"),
        "with a citation": each("cited"),
        "answers that repeat themselves": each("repeats"),
        "unanswered": each("unanswered"),
        "cut off at max_tokens": each("cut_off"),
        "input tokens": each("input_tokens"),
        "output tokens": each("output_tokens"),
        "tokens beyond the text": [
            "-" if one.beyond_text is None else f"{one.beyond_text:.1%}" for one in figures
        ],
    }


def _passage_chars_max(settings: Mapping[str, str]) -> int:
    default = GeneratorSettings().passage_chars_max
    return int(settings.get(environment_name("generator", "passage_chars_max"), default))
