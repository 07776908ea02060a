"""`carpool bench data --sentences`: a larger real set, of the passages and their sentences."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from bench.core.run import BenchRun
from bench.data.evaluation import (
    CORPUS,
    find_data,
    new_folder,
    read_passages,
    read_vectors,
    real_questions,
)
from bench.data.options import GrowOptions
from carpool.embedding import EmbeddingSettings, load_embedder
from generator.plan.sentences import sentence_spans

CHARS_MIN = 60
"""A shorter sentence says too little to be found."""


def run(options: GrowOptions) -> bool:
    """Writes the set, with at most `options.rows` documents. Blocks for minutes: it embeds.

    Raises `ConfigError` where data or disk do not fit.
    """
    run, data, out = BenchRun("data", options), find_data(options.data), options.out
    passages, vectors = read_passages(data.corpus_path), read_vectors(data.vectors_path(CORPUS))
    documents = [{"title": each.title, "text": each.text} for each in passages]
    for each in passages:
        spans = list(sentence_spans(each.text))
        texts = [each.text[start:end] for start, end in spans if end - start >= CHARS_MIN]
        documents += [{"title": each.title, "text": text} for text in texts if len(spans) > 1]
    documents = documents[: max(options.rows, len(passages))]
    sentences = [f"{each['title']}. {each['text']}" for each in documents[len(passages) :]]
    run.note(f"embedding {len(sentences):,} sentences")
    began_s = time.monotonic()
    embedded = load_embedder(EmbeddingSettings()).encode(sentences)
    embedding_s = time.monotonic() - began_s
    with new_folder(out):
        np.save(out / "vectors.npy", np.concatenate([vectors, embedded]).astype(np.float16))
        np.save(out / "queries.npy", real_questions(data, options.seed))
        lines = [{"id": f"row-{row}", **each} for row, each in enumerate(documents)]
        (out / "corpus.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    found = {"rows": len(documents), "embedding_s": round(embedding_s)}
    return run.finish({"data": {"set": found}}, promises={}, results=found)
