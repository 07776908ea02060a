"""`carpool bench answers`: are the answers right, what are they cited for, what do they cost?"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial

from msgspec import structs
from tokenizers import Tokenizer

from bench.answers.gold import GOLD_FILE, GoldQuestion, read_gold
from bench.answers.rows import (
    AnswerFigures,
    AskedRow,
    Share,
    figures_of,
    judge,
    without_markers,
)
from bench.answers.support import judged_threshold
from bench.core.accounting import Accounting, account, answers_of
from bench.core.load import even
from bench.core.stack import llm_server
from bench.data.evaluation import NATURAL
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
from producers.read_questions import Question
from schemas.topics import ANSWERS

ONE_SHOT = "one_shot"
SERVICES = ("grouper", "searcher", "generator")
RATE_PER_S = 20.0
STALLED_S = 300.0
"""How long a model may write before the first, or the next, answer is there."""
SETTLE_S = 1.0
START_TIMEOUT_S = 600.0
GOLD_WITH_QUOTE_MIN = 0.75
BEYOND_TEXT_MAX = 0.15


def run(options: AnswersOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    corpus = CorpusRun("answers", options)
    gold = read_gold()[: options.questions]
    natural = [
        GoldQuestion(
            id=str(each.id), topic=NATURAL, question=each.text or "", answers=(), passage=""
        )
        for each in corpus.questions(NATURAL)[: options.natural]
    ]
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
            for name, asked in ((workflow, gold), (f"{workflow}, {NATURAL}", natural)):
                if not asked:
                    continue
                took_s, accounting, rows = measure(corpus, asked, vllm, server.llm_url, workflow)
                figures = figures_of(rows)
                facts = structs.asdict(figures).items()
                shown[name] = {fact: _shown(value) for fact, value in facts}
                shown[name]["seconds"] = f"{took_s:.1f}"
                results[name] = {
                    "seconds": took_s,
                    "accounting": accounting,
                    "figures": figures,
                    "rows": [structs.replace(row, retrieved=()) for row in rows],
                }
                is_promised = name == ONE_SHOT
                kept = promises_of(accounting, figures, is_one_shot=is_promised)
                promises |= {f"{name}: {each}": holds for each, holds in kept.items()}
                corpus.note(f"{name}: {shown[name]}")
                if is_promised:
                    threshold = judged_threshold(corpus.data.corpus_path, gold, rows)
                    results["threshold"] = threshold
                    shown["threshold of support"] = structs.asdict(threshold)
    return corpus.finish(
        {"answers": shown},
        promises=promises,
        results={"llm_model": model_name(vllm), **results},
        **corpus.facts(GOLD_FILE),
    )


def measure(
    run: CorpusRun, gold: Sequence[GoldQuestion], vllm: VllmSettings, url: str, workflow: str
) -> tuple[float, Accounting, list[AskedRow]]:
    """Asks all questions and reads their answers; returns the seconds too. Blocks."""
    run.settings.setdefault(environment_name("llm", "model"), model_name(vllm))
    if (passages := passages_for(vllm)) is not None:
        run.settings.setdefault(environment_name("generator", "passages_max"), str(passages))
    questions = [Question(id=each.id, text=each.question, workflow=workflow) for each in gold]
    with run.session(SERVICES, workflow, llm_url=url) as session:
        begin = time.monotonic()
        load = session.ask(
            questions,
            run.plan,
            even(RATE_PER_S),
            topics=(ANSWERS.name,),
            stalled_s=STALLED_S,
            settle_s=SETTLE_S,
        )
        took_s = time.monotonic() - begin - SETTLE_S
        answers = answers_of(session.recorder.records(ANSWERS.name), load.keys())
    first = {answer.query_id: answer for answer in reversed(answers)}
    tokenizer, rows = Tokenizer.from_file(f"{vllm.model_dir}/tokenizer.json"), []
    for query_id, sent in load.items():
        row = judge(gold[sent.row], first.get(query_id))
        text = tokenizer.encode(without_markers(row.answer), add_special_tokens=False)
        rows.append(structs.replace(row, text_tokens=len(text.ids)))
    return took_s, account(load.keys(), (answer.query_id for answer in answers)), rows


def promises_of(
    accounting: Accounting, figures: AnswerFigures, *, is_one_shot: bool = True
) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises = {"each question has one terminal answer": accounting.holds}
    if not is_one_shot:
        return promises
    return promises | {
        f"gold in answer or quote at least {GOLD_WITH_QUOTE_MIN}": (
            _share(figures.gold_in_answer_or_quote) >= GOLD_WITH_QUOTE_MIN
        ),
        f"tokens beyond the text at most {BEYOND_TEXT_MAX:.0%}": (
            figures.beyond_text <= BEYOND_TEXT_MAX
        ),
    }


def _share(share: Share | None) -> float:
    return 0.0 if share is None else share.share


def _shown(value: float | Share | None) -> str:
    if isinstance(value, float):
        return f"{value:.1%}" if value < 1 else f"{value:.1f}"
    return "-" if value is None else str(value)
