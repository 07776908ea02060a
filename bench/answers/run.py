"""`carpool bench answers`: are the answers right, what are they cited for, what do they cost?"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs
from tokenizers import Tokenizer

from bench.answers.gold import GOLD_FILE, GoldQuestion, read_gold
from bench.answers.rows import AskedRow, figures_of, judge
from bench.answers.support import judged_threshold
from bench.core.accounting import Accounting, account
from bench.core.load import even
from bench.core.run import figures as shown_figures
from bench.core.stack import SERVICES, ServiceProcess, llm_url
from bench.data.evaluation import NATURAL
from bench.services.corpus import CorpusRun
from bench.services.options import AnswersOptions
from carpool.kafka.embedded import free_port
from carpool.settings import environment_name
from carpool.statements import without_markers
from carpool.vllm import (
    VllmSettings,
    check_vllm,
    model_name,
    passages_for,
    vllm_command,
    vllm_environment,
)
from producers.read_questions import Question

ONE_SHOT = "one_shot"
RATE_PER_S = 20.0
STALLED_S = 300.0
"""How long a model may write before the first, or the next, answer is there."""
SETTLE_S = 1.0
GOLD_WITH_QUOTE_MIN = 0.75
BEYOND_TEXT_MAX = 0.15


def run(options: AnswersOptions) -> bool:
    corpus = CorpusRun("answers", options)
    gold = read_gold()[: options.questions]
    natural = [
        GoldQuestion(
            id=str(each.id), topic=NATURAL, question=each.text or "", answers=(), passage=""
        )
        for each in corpus.data.questions(NATURAL)[: options.natural]
    ]
    vllm, port = VllmSettings(), free_port()
    shown, results, promises = {}, dict[str, object](), dict[str, bool]()
    check_vllm(vllm)
    with ServiceProcess(
        vllm_command(vllm, port),
        environ=vllm_environment(os.environ),
        log_file=corpus.folder / "vllm.log",
        port=port,
    ):
        for workflow in options.workflow:
            for name, asked in ((workflow, gold), (f"{workflow}, {NATURAL}", natural)):
                if not asked:
                    continue
                took_s, accounting, rows = measure(corpus, asked, vllm, port, workflow)
                figures = figures_of(rows)
                shown[name] = figures | {"seconds": took_s}
                results[name] = {
                    "seconds": took_s,
                    "accounting": accounting,
                    "figures": figures,
                    "rows": [structs.replace(row, retrieved=()) for row in rows],
                }
                is_promised = name == ONE_SHOT
                kept = promises_of(accounting, figures, is_one_shot=is_promised)
                promises |= {f"{name}: {each}": holds for each, holds in kept.items()}
                corpus.note(f"{name}: {dict(shown_figures(figures))}")
                if is_promised:
                    threshold = judged_threshold(corpus.data.corpus_path, gold, rows)
                    results["threshold"] = threshold
                    shown["threshold of support"] = threshold
    return corpus.finish(
        {"answers": shown},
        promises=promises,
        results={"llm_model": model_name(vllm), **results},
        **corpus.facts(GOLD_FILE),
    )


def measure(
    run: CorpusRun, gold: Sequence[GoldQuestion], vllm: VllmSettings, port: int, workflow: str
) -> tuple[float, Accounting, list[AskedRow]]:
    """Asks all questions and reads their answers; returns the seconds too. Blocks."""
    run.settings.setdefault(environment_name("llm", "model"), model_name(vllm))
    if (passages := passages_for(vllm)) is not None:
        run.settings.setdefault(environment_name("generator", "passages_max"), str(passages))
    questions = [Question(id=each.id, text=each.question, workflow=workflow) for each in gold]
    with run.session(SERVICES, workflow, llm_url=llm_url(port)) as session:
        begin = time.monotonic()
        load = session.send(questions, even(RATE_PER_S))
        session.recorder.wait(load.keys(), stalled_s=STALLED_S, settle_s=SETTLE_S)
        took_s = time.monotonic() - begin - SETTLE_S
        answers = session.answers(load)
    first = {answer.query_id: answer for answer in reversed(answers)}
    tokenizer, rows = Tokenizer.from_file(f"{vllm.model_dir}/tokenizer.json"), []
    for one in gold:
        row = judge(one, first.get(one.id))
        text = tokenizer.encode(without_markers(row.answer), add_special_tokens=False)
        rows.append(structs.replace(row, text_tokens=len(text.ids)))
    return took_s, account(load, (answer.query_id for answer in answers)), rows


def promises_of(
    accounting: Accounting, figures: Mapping[str, Any], *, is_one_shot: bool = True
) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises = {"each question has one terminal answer": accounting.holds}
    gold = figures["gold_in_answer_or_quote"]
    if not is_one_shot:
        return promises
    return promises | {
        f"gold in answer or quote at least {GOLD_WITH_QUOTE_MIN}": (
            gold is not None and gold.share >= GOLD_WITH_QUOTE_MIN
        ),
        f"tokens beyond the text at most {BEYOND_TEXT_MAX:.0%}": (
            figures["beyond_text"] <= BEYOND_TEXT_MAX
        ),
    }
