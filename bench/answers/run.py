"""`carpool bench answers`: are the answers right, and what do they cost?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from math import sqrt
from statistics import mean, stdev

import msgspec
from msgspec import structs
from tokenizers import Tokenizer

from bench.answers.gold import GOLD_FILE, GoldQuestion, f1, has_gold, read_gold
from bench.core.accounting import Accounting, account, answers_of
from bench.core.stack import llm_server
from bench.services.corpus import CorpusRun
from bench.services.options import AnswersOptions
from carpool.settings import environment_name
from carpool.vllm import (
    VllmSettings,
    check_vllm,
    model_name,
    passages_for,
    vllm_command,
    vllm_environment,
)
from producers.arrival_times import even
from producers.read_questions import Question
from schemas.answer import Answer
from schemas.topics import ANSWERS

ONE_SHOT = "one_shot"
SERVICES = ("grouper", "searcher", "generator")
RATE_PER_S = 20.0
STALLED_S = 300.0
"""How long a model may write before the first, or the next, answer is there."""
SETTLE_S = 1.0
START_TIMEOUT_S = 600.0
_MARKER = re.compile(r"\s*\[\s*\d{1,3}(?:\s*[,;]\s*\d{1,3})*\s*\]", re.ASCII)
GOLD_WITH_QUOTE_MIN = 0.75
BEYOND_TEXT_MAX = 0.15
Z_95 = 1.959964
"""The number of standard deviations around the mean that hold 95 % of a normal distribution."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The true share is between `low` and `high` in 95 of 100 such runs."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        """Returns the share and its interval, such as `0.38 (0.29 to 0.48)`."""
        return f"{self.share:.2f} ({self.low:.2f} to {self.high:.2f})"


def share_of(yes: Iterable[bool]) -> Share:
    """Returns the share of True with Wilson's score interval; 0 to 1 where there are no values.

    Wilson's interval, unlike the normal one, holds for shares near 0 and 1 and for few values.
    """
    values = list(yes)
    count, total = sum(values), len(values)
    if not total:
        return Share(share=0.0, low=0.0, high=1.0)
    share, z2 = count / total, Z_95 * Z_95
    # (p + z^2/2n ± z * sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    middle = share + z2 / (2 * total)
    half = Z_95 * sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    scale = 1 + z2 / total
    low, high = (middle - half) / scale, (middle + half) / scale
    return Share(share=share, low=max(0.0, low), high=min(1.0, high))


def mean_of(values: Sequence[float]) -> Share:
    """Returns the mean of values from 0 to 1 with its normal 95 % interval."""
    if len(values) < 2:
        return Share(share=sum(values), low=0.0, high=1.0)
    middle, half = mean(values), Z_95 * stdev(values) / sqrt(len(values))
    return Share(share=middle, low=max(0.0, middle - half), high=min(1.0, middle + half))


class AskedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A question and what came back. `gold_*`: whether it contains one of the gold answers.

    `output_tokens`: as the server counted. `text_tokens`: those of the text without markers.
    """

    question_id: str
    question: str
    status: str
    answer: str = ""
    quote: str = ""
    cited: int = 0
    gold_in_answer: bool = False
    gold_in_quote: bool = False
    f1: float = 0.0
    steps: int = 0
    output_tokens: int = 0
    text_tokens: int = 0


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run.

    `beyond_text`: the share of output tokens that are not tokens of the text, but of its markers
    and end. Of a workflow, the tokens of its steps are beyond the text, too.
    """

    gold_in_answer: Share
    gold_in_answer_or_quote: Share
    f1: Share
    cited: Share
    beyond_text: float


def run(options: AnswersOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    corpus = CorpusRun("answers", options)
    gold = read_gold()[: options.questions]
    vllm = VllmSettings()
    shown, results, promises = {}, dict[str, object](), dict[str, bool]()
    check_vllm(vllm)
    with llm_server(
        partial(vllm_command, vllm),
        vllm_environment(os.environ),
        corpus.folder / "vllm.log",
        START_TIMEOUT_S,
    ) as server:
        for workflow in options.workflow:
            accounting, rows = measure(corpus, gold, vllm, server.llm_url, workflow)
            figures = figures_of(rows)
            facts = structs.asdict(figures).items()
            shown[workflow] = {name: _shown(value) for name, value in facts}
            results[workflow] = {"accounting": accounting, "figures": figures, "rows": rows}
            kept = promises_of(accounting, figures, is_one_shot=workflow == ONE_SHOT)
            promises |= {f"{workflow}: {name}": holds for name, holds in kept.items()}
            corpus.note(f"{workflow}: {shown[workflow]}")
    return corpus.finish(
        {"answers": shown},
        promises=promises,
        results={"llm_model": model_name(vllm), **results},
        **corpus.facts(GOLD_FILE),
    )


def measure(
    run: CorpusRun, gold: Sequence[GoldQuestion], vllm: VllmSettings, url: str, workflow: str
) -> tuple[Accounting, list[AskedRow]]:
    """Asks all questions and reads their answers. Blocks."""
    run.settings.setdefault(environment_name("llm", "model"), model_name(vllm))
    if (passages := passages_for(vllm)) is not None:
        run.settings.setdefault(environment_name("generator", "passages_max"), str(passages))
    questions = [Question(id=each.id, text=each.question, workflow=workflow) for each in gold]
    with run.session(SERVICES, workflow, llm_url=url) as session:
        load = session.ask(
            questions,
            run.plan,
            even(RATE_PER_S),
            topics=(ANSWERS.name,),
            stalled_s=STALLED_S,
            settle_s=SETTLE_S,
        )
        answers = answers_of(session.recorder.records(ANSWERS.name), load.keys())
    first = {answer.query_id: answer for answer in reversed(answers)}
    tokenizer, rows = Tokenizer.from_file(f"{vllm.model_dir}/tokenizer.json"), []
    for query_id, sent in load.items():
        row = judge(gold[sent.row], first.get(query_id))
        text = tokenizer.encode(without_markers(row.answer), add_special_tokens=False)
        rows.append(structs.replace(row, text_tokens=len(text.ids)))
    return account(load.keys(), (answer.query_id for answer in answers)), rows


def judge(gold: GoldQuestion, answer: Answer | None) -> AskedRow:
    """Returns the row of a question; `answer` None: it has none."""
    if answer is None:
        return AskedRow(question_id=gold.id, question=gold.question, status="none")
    text = answer.answer or ""
    quote = "\n".join(each.text for each in answer.quotes)
    return AskedRow(
        question_id=gold.id,
        question=gold.question,
        status=answer.status,
        answer=text,
        quote=quote,
        cited=len(answer.citations),
        gold_in_answer=has_gold(text, gold.answers),
        gold_in_quote=has_gold(quote, gold.answers),
        f1=f1(without_markers(text), gold.answers),
        steps=len(answer.steps),
        output_tokens=answer.usage.output_tokens if answer.usage else 0,
    )


def promises_of(
    accounting: Accounting, figures: AnswerFigures, *, is_one_shot: bool = True
) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises = {"each question has one terminal answer": accounting.holds}
    if not is_one_shot:
        return promises
    return promises | {
        f"gold in answer or quote at least {GOLD_WITH_QUOTE_MIN}": (
            figures.gold_in_answer_or_quote.share >= GOLD_WITH_QUOTE_MIN
        ),
        f"tokens beyond the text at most {BEYOND_TEXT_MAX:.0%}": (
            figures.beyond_text <= BEYOND_TEXT_MAX
        ),
    }


def _shown(value: float | Share) -> str:
    return f"{value:.1%}" if isinstance(value, float) else str(value)


def without_markers(text: str) -> str:
    """Returns the text without markers such as `[1]`, which are no content."""
    return _MARKER.sub("", text)


def figures_of(rows: Sequence[AskedRow]) -> AnswerFigures:
    """Returns the figures over all rows."""
    answered = [row for row in rows if row.answer]
    output_tokens = sum(row.output_tokens for row in answered)
    text_tokens = sum(row.text_tokens for row in answered)
    return AnswerFigures(
        gold_in_answer=share_of(row.gold_in_answer for row in rows),
        f1=mean_of([row.f1 for row in rows]),
        gold_in_answer_or_quote=share_of(row.gold_in_answer or row.gold_in_quote for row in rows),
        cited=share_of(row.cited > 0 for row in rows),
        beyond_text=1 - text_tokens / output_tokens if output_tokens else 0.0,
    )
