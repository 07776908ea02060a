"""Streams of prompts from real questions and passages: natural, by Zipf, and in RAGPulse's shape.

A stream is a sequence of `Ask`: a question and its passages, the best first. `PromptIds` renders
one as token ids, with the generator's template and the chat template of a model folder.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from bench.data.evaluation import (
    CORPUS,
    TRAFFIC,
    CorpusPassage,
    EvaluationData,
    Float32,
    read_passages,
    read_vectors,
)
from carpool.errors import ConfigError
from generator.plan.prompt import PASSAGE_SEPARATOR, FilledPrompt, Template, fill
from generator.settings import GeneratorSettings
from schemas.record import ClusterId
from schemas.retrieval import Hit

StreamName = Literal["natural", "zipf", "ragpulse"]
STREAM_NAMES: tuple[StreamName, ...] = get_args(StreamName)

RECENT_ASKS = 100
RECENT_SHARE = 0.49
REPEATED_LISTS_SHARE = 0.068
RAGPULSE_ZIPF = 0.8
"""RAGPulse, a trace of a RAG service: of its passages 49 % were in the last 100 requests, 6.8 % of
its requests repeat an ordered list of passages, and passages are popular by Zipf 0.8."""
_ROWS_AT_A_TIME = 512
_MARK = "the message"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A question, and the rows of its passages in the corpus with their scores, best first."""

    question: str
    passages: tuple[int, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamShape:
    """How much a stream repeats. A list is the passages of a request, in their order.

    `recent_share`: passages that were in the last 100 requests. `repeated_lists_share`: lists that
    were there before. `zipf_exponent`: of the popularity of passages, by least squares of the
    logarithms of the 100 most popular ones.
    """

    asks: int
    recent_share: float
    repeated_lists_share: float
    zipf_exponent: float


def natural_stream(data: EvaluationData, *, passages: int) -> tuple[Ask, ...]:
    """Returns all questions as they come, each with its exact best `passages`. Takes seconds."""
    questions = [question.text or "" for question in data.questions(TRAFFIC)]
    corpus = read_vectors(data.vectors_path(CORPUS))
    vectors = read_vectors(data.vectors_path(TRAFFIC))
    if len(questions) != len(vectors):
        raise ConfigError(
            f"{data.folder} has {len(questions)} questions and {len(vectors)} vectors of them; "
            "make the vectors anew"
        )
    asks: list[Ask] = []
    for begin in range(0, len(vectors), _ROWS_AT_A_TIME):
        rows, scores = _best(corpus, vectors[begin : begin + _ROWS_AT_A_TIME], passages)
        for question, at, of in zip(questions[begin:], rows, scores, strict=False):
            asks.append(
                Ask(question=question, passages=tuple(at.tolist()), scores=tuple(of.tolist()))
            )
    return tuple(asks)


def make_stream(name: StreamName, natural: Sequence[Ask], *, asks: int, seed: int) -> list[Ask]:
    """Returns `asks` requests made of the natural stream; the same for the same `seed`."""
    rng = np.random.default_rng(seed)
    match name:
        case "natural":
            return [natural[place % len(natural)] for place in range(asks)]
        case "zipf":
            order = rng.permutation(len(natural))
            drawn = rng.choice(len(natural), size=asks, p=_zipf(len(natural), 1.0))
            return [natural[order[rank]] for rank in drawn]
        case "ragpulse":
            return _ragpulse(natural, asks, rng)


def shape_of(asks: Sequence[Ask]) -> StreamShape:
    """Returns what a stream repeats."""
    recent: deque[tuple[int, ...]] = deque(maxlen=RECENT_ASKS)
    lists: set[tuple[int, ...]] = set()
    seen = repeated = 0
    for ask in asks:
        window = {passage for passages in recent for passage in passages}
        seen += sum(passage in window for passage in ask.passages)
        repeated += ask.passages in lists
        recent.append(ask.passages)
        lists.add(ask.passages)
    counts = Counter(passage for ask in asks for passage in ask.passages)
    top = np.array([count for _, count in counts.most_common(100)], dtype=np.float64)
    slope = np.polyfit(np.log(np.arange(1, len(top) + 1)), np.log(top), 1)[0]
    return StreamShape(
        asks=len(asks),
        recent_share=seen / counts.total(),
        repeated_lists_share=repeated / len(asks),
        zipf_exponent=float(-slope),
    )


class PromptIds:
    """Renders questions and passages as token ids, as the generator would send them.

    Raises `ConfigError` for a folder without a tokenizer that has a chat template.
    """

    def __init__(self, data: EvaluationData, model_dir: Path, template: Template) -> None:
        from transformers import AutoTokenizer  # seconds to import

        if not (model_dir / "tokenizer.json").is_file():
            raise ConfigError(
                f"{model_dir} has no tokenizer.json: prompts are made of a model's tokens; name "
                "the folder of a chat model with --llm"
            )
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        if self._tokenizer.chat_template is None:
            raise ConfigError(f"the model in {model_dir} has no chat template; name a chat model")
        self._passages: tuple[CorpusPassage, ...] = read_passages(data.corpus_path)
        self._template = template
        self._settings = GeneratorSettings()

    def render(self, question: str, passages: Sequence[int]) -> tuple[int, ...]:
        """Returns the ids of a prompt with these passages, numbered in this order.

        Segments are tokenized alone, as the generator does it (`generator/llm/token_prompts.py`).
        """
        filled = self._fill(question, passages)
        head, tail = self._frame(filled.system)
        segments = (self._segment(text) for text in filled.segments if text)
        return (*head, *(id for ids in segments for id in ids), *tail)

    @cache  # noqa: B019 - lives as long as the run
    def _frame(self, system: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ids before and after the user's message."""
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": _MARK},
        ]
        text = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        head, tail = text.split(_MARK)
        return self._ids(head), self._ids(tail)

    @cache  # noqa: B019 - lives as long as the run
    def _segment(self, text: str) -> tuple[int, ...]:
        """Returns the ids of a segment, which is tokenized between a line break and a bracket."""
        if text.endswith("\n"):
            return self._ids(f"\n{text}[")[1:-1]
        return self._ids(f"\n{text}")[1:]

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def passage_tokens(self, row: int) -> int:
        """Returns how many tokens a passage takes in a prompt, tokenized alone."""
        text = self._fill("", (row,)).segments[1] + PASSAGE_SEPARATOR
        return len(self._segment(text))

    def _fill(self, question: str, passages: Sequence[int]) -> FilledPrompt:
        hits = [self._hit(row) for row in passages]
        return fill(
            self._template,
            question,
            hits,
            passages_max=len(hits),
            passage_chars_max=self._settings.passage_chars_max,
            prompt_chars_max=self._settings.prompt_chars_max,
        )

    def _hit(self, row: int) -> Hit:
        passage = self._passages[row]
        return Hit(
            doc_id=str(passage.id),
            score=0.0,
            cluster=ClusterId(0),
            title=passage.title,
            text=passage.text,
        )


def _best(
    corpus: Float32, queries: Float32, top_k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Returns rows and scores, (n, top_k), by score and then by row."""
    scores = queries @ corpus.T
    rows = np.argpartition(-scores, top_k, axis=1)[:, :top_k]
    found = np.take_along_axis(scores, rows, axis=1)
    order = np.lexsort((rows, -found), axis=1)
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(found, order, axis=1)


def _zipf(ranks: int, exponent: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, ranks + 1, dtype=np.float64) ** -exponent
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


def _ragpulse(natural: Sequence[Ask], asks: int, rng: np.random.Generator) -> list[Ask]:
    """Questions and scores are the natural ones; which passages they get is drawn."""
    known = sorted({passage for ask in natural for passage in ask.passages})
    popular = rng.permutation(known)
    weights = _zipf(len(popular), RAGPULSE_ZIPF)
    recent: deque[tuple[int, ...]] = deque(maxlen=RECENT_ASKS)
    by_zipf = _draws(popular, weights, rng)
    stream = []
    seen = drawn_in_all = 0
    for place in range(asks):
        ask = natural[place % len(natural)]
        window = {passage for passages in recent for passage in passages}
        if recent and rng.random() < REPEATED_LISTS_SHARE:
            drawn = list(recent[rng.integers(len(recent))])
        else:
            drawn = []
            while len(drawn) < len(ask.passages):
                # Some draws by Zipf are recent by chance; what is missing is drawn of the recent.
                if recent and seen < RECENT_SHARE * drawn_in_all:
                    one = recent[rng.integers(len(recent))]
                    passage = one[rng.integers(len(one))]
                else:
                    passage = next(by_zipf)
                if passage not in drawn:
                    drawn.append(passage)
        drawn_in_all += len(drawn)
        seen += sum(passage in window for passage in drawn)
        recent.append(tuple(drawn))
        stream.append(Ask(question=ask.question, passages=tuple(drawn), scores=ask.scores))
    return stream


def _draws(
    items: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], rng: np.random.Generator
) -> Iterator[int]:
    while True:
        yield from rng.choice(items, size=_ROWS_AT_A_TIME, p=weights).tolist()
