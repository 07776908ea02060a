"""How near is the next search of a workflow to what is known while the text before it is written?

HedraRAG 4.3: partial texts, the last search, the order by history, and speculative retrieval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import data_file
from bench.core.options import WORK
from bench.core.run import BenchRun
from bench.data import evaluation
from bench.data.grown import Collection, collection_of
from bench.papers.hedrarag.speculative_retrieval import PLANES, Root, alone, busy
from bench.papers.hedrarag.texts import Steps, open_model, run_program
from bench.papers.options import NearnessOptions
from bench.simulator.warm_ups import found_in
from carpool.arrays import Float32, Int64
from carpool.embedding.loader import load_embedder
from carpool.embedding.settings import EmbeddingSettings
from carpool.vllm import VllmSettings
from carpool.workflow.programs.hyde import hyde
from carpool.workflow.programs.irg import irg
from carpool.workflow.steps import Found
from schemas.hit import Hit
from schemas.record import ClusterId

Encode = Callable[[Sequence[str]], Float32]

TEXTS = WORK / "workflow-texts.json"
QUESTIONS = {hyde: 96, irg: 32}
SHARES = (0.25, 0.5, 0.75)
NPROBE = {100: 24, 1000: 75}
"""By nlist. Of a million rows 300 of 4,000 clusters are probed, as large a share as 75 of 1,000."""
TOP_K, HISTORY, PASSAGES = 10, 20, 3
ROW_BYTES = {"exact": 384 * 4, "paged": 384 // 2 + 4}
MEMORY_SHARES = (0.1, 0.4)
"""Of the bytes of all clusters."""
OTHERS = (0, 6)
"""Questions of one search in each window of a busy searcher."""
KNOWN, HALF = "question or last search", "50% of the text"
BY_HISTORY = "H and C', C and C', the rest"


class Texts(NamedTuple):
    """Searches that follow a text, `rounds` a workflow, and what is embedded instead by name."""

    whole: Float32
    instead: Mapping[str, Float32]
    rounds: int


def run(options: NearnessOptions) -> bool:
    begun = BenchRun("paper hedrarag-nearness", options)
    data, encode = evaluation.find_data(options.data), load_embedder(EmbeddingSettings()).encode
    if not TEXTS.is_file():
        TEXTS.parent.mkdir(parents=True, exist_ok=True)
        TEXTS.write_bytes(msgspec.json.encode(written(data, encode, options.seed)))
    steps = msgspec.json.decode(TEXTS.read_bytes(), type=list[Steps])
    texts = {
        program.name: texts_of([one for one in steps if one.program == program.name], encode)
        for program in QUESTIONS
    }
    others = evaluation.read_vectors(data.vectors_path(evaluation.TRAFFIC))
    others = others[np.random.default_rng(options.seed).permutation(len(others))]
    tables: dict[str, dict[str, Any]] = {}
    for nlist, nprobe in NPROBE.items():
        with threadpool_limits(limits=1):
            collection = collection_of(data, nlist, nprobe, options.seed)
        for name, each in texts.items():
            tables[f"{name}, nlist {nlist}: the next search and what is known before"] = {
                what: nearness(collection, vectors, each.whole)
                for what, vectors in each.instead.items()
            }
            for share in MEMORY_SHARES:
                title = f"{name}, nlist {nlist}, memory {share:.0%}: bytes over those wanted"
                tables[title] = advised(collection, each, others, share)
        last, whole = texts[irg.name].instead[KNOWN], texts[irg.name].whole
        tables[f"irg, nlist {nlist}: history"] = {"share": history(collection, last, whole)}
    files = (data_file(data.vectors_path(evaluation.CORPUS)), data_file(TEXTS))
    return begun.finish(tables, promises={}, results=tables, data=files)


def written(data: evaluation.EvaluationData, encode: Encode, seed: int) -> list[Steps]:
    """Returns what the model writes for questions of HotpotQA; every search is exact."""
    corpus = evaluation.read_vectors(data.vectors_path(evaluation.CORPUS))
    hits = [
        Hit(doc_id=one.doc_id, title=one.title, text=one.text, score=0, cluster=ClusterId(0))
        for one in evaluation.read_passages(data.corpus_path)
    ]

    def search(text: str) -> Found:
        best = np.argsort(-(corpus @ encode([text])[0]))[:TOP_K]
        return Found([hits[row] for row in best.tolist()])

    asked = [question.text or "" for question in data.questions(evaluation.TRAFFIC)]
    order = np.random.default_rng(seed).permutation(len(asked))
    write = open_model(Path(VllmSettings().model_dir))
    return [
        run_program(program, asked[at], search, write)
        for program, count in QUESTIONS.items()
        for at in order[:count]
    ]


def texts_of(steps: Sequence[Steps], encode: Encode) -> Texts:
    """Returns the vectors of all searches that follow a text, and of what is known before."""
    whole: list[str] = []
    instead: dict[str, list[str]] = {}
    for one in steps:
        searched = pairwise([one.question, *one.searched][-len(one.written) - 1 :])
        for (last, following), text in zip(searched, one.written, strict=True):
            whole.append(following)
            instead.setdefault(KNOWN, []).append(last)
            for share in SHARES:
                so_far = following.removesuffix(text) + text[: round(len(text) * share)]
                instead.setdefault(f"{share:.0%} of the text", []).append(so_far or one.question)
    vectors = {name: encode(each) for name, each in instead.items()}
    return Texts(encode(whole), vectors, len(steps[0].written))


def nearness(collection: Collection, guess: Float32, whole: Float32) -> dict[str, float]:
    """Returns how near `guess` is to `whole`, (searches, dim) both: means over searches."""
    best, nearest = collection.best(whole, TOP_K), collection.probed(whole)
    probed = collection.probed(guess)
    found = {"cosine": float((guess * whole).sum(axis=1).mean())}
    for count in (10, 20, 50):
        found[f"top 10 among its best {count}"] = share_in(best, collection.best(guess, count))
    found["10 nearest clusters among its probed"] = share_in(nearest[:, :10], probed)
    found["all clusters among its probed"] = share_in(nearest, probed)
    return found


def share_in(each: Iterable[Int64], among: Iterable[Int64]) -> float:
    """Returns the mean share of a row of `each` that is in the same row of `among`."""
    shares = [np.isin(one, others).mean() for one, others in zip(each, among, strict=True)]
    return float(np.mean(shares))


def history(collection: Collection, last: Float32, following: Float32) -> dict[str, float]:
    """Returns the observations of 4.3 as mean shares, and what an order by history is worth.

    H: the clusters of the best 20 of the last search; C, C': those that it and the next probe.
    """
    best, best20 = collection.best(following, 2), collection.best(last, HISTORY)
    homes, of_homes = collection.clusters[best], list(collection.clusters[best20])
    probed, of_next = list(collection.probed(last)), list(collection.probed(following))
    row = {
        "1: best 2 among the best 20 of the last": share_in(best, best20),
        "2: best 2 in H": share_in(homes, of_homes),
        "3: best 2 in C": share_in(homes, probed),
    }
    by_history = []
    for here, before, nearest in zip(of_homes, probed, of_next, strict=True):
        later = np.where(np.isin(nearest, here), 0, np.where(np.isin(nearest, before), 1, 2))
        by_history.append(nearest[np.argsort(later, kind="stable")])
    for name, order in ("nearest first", of_next), (BY_HISTORY, by_history):
        row[f"final after, {name}"] = median(map(partial(final_at, collection), order, following))
    return row


def final_at(collection: Collection, order: Int64, vector: Float32) -> float:
    """Returns after which share of the bytes the best passages of a search are final."""
    found = found_in(order.tolist(), vector, collection.corpus, collection.rows_of, PASSAGES)
    wrong = [number for number, one in enumerate(found) if one.passages != found[-1].passages]
    return found[wrong[-1] + 1 if wrong else 0].at


def advised(
    collection: Collection, texts: Texts, others: Float32, memory_share: float
) -> dict[str, dict[str, float]]:
    """Returns the bytes of reads with each advice."""
    known, half = (collection.probed(texts.instead[name]).tolist() for name in (KNOWN, HALF))
    whole, asked = (collection.probed(each).tolist() for each in (texts.whole, others))
    both = [list(dict.fromkeys(one + more)) for one, more in zip(known, half, strict=True)]
    guesses = {"none": [()] * len(whole), KNOWN: known, f"{KNOWN}, {HALF}": both, "oracle": whole}
    found: dict[str, dict[str, float]] = {}
    for name, guess in guesses.items():
        row = found[name] = {}
        steps = list(zip(guess, whole, strict=True))
        roots = [
            Root(known[at] if texts.rounds > 1 else None, steps[at : at + texts.rounds])
            for at in range(0, len(steps), texts.rounds)
        ]
        for plane in PLANES:
            sizes = [len(rows) * ROW_BYTES[plane] for rows in collection.rows_of]
            budget_bytes = int(sum(sizes) * memory_share)
            waited_for, read = alone(plane, roots, sizes, budget_bytes)
            row[f"{plane}, alone: waited for"], row[f"{plane}, alone: read"] = waited_for, read
            for count in OTHERS:
                each = (asked[at : at + count] for at in range(0, len(asked), count or 1))
                read = busy(plane, roots, each, sizes, budget_bytes)
                row[f"{plane}, busy, {count} others a window: read"] = read
    return found
