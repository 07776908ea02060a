"""The regime of slow searches: a grown collection, its budget, and what a step takes alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from openai import DefaultHttpxClient, OpenAI

from bench.core.spread import spread
from bench.data.index import BenchIndex, built
from bench.papers.hedrarag.baselines import TOP_K, Sections
from bench.papers.hedrarag.loads import FIVE
from bench.papers.hedrarag.texts import run_program
from bench.papers.options import HedraRagOptions
from bench.search.child import process_read_bytes
from carpool.disk.index import open_index
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from carpool.embedding.loader import load_question_embedder
from carpool.embedding.settings import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.settings import environment_name, load_settings
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from carpool.workflow.load import load_programs
from carpool.workflow.program import find
from carpool.workflow.steps import Found
from generator.plan.prompt import FilledPrompt
from indexer.settings import IndexerConfig
from searcher.build import bytes_for_codes
from searcher.codes.open import choose_codes
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings

ALONE = 20
"""Questions that are asked alone, one after the other, the workflows in turn."""


def collection_index(folder: Path, seed: int) -> BenchIndex:
    """Returns the index in a folder that `carpool bench data` made, built if absent. Blocks."""
    index_dir = (folder / "index").resolve()
    if (index_dir / MANIFEST_NAME).exists():
        return BenchIndex(dir=index_dir, manifest=read_manifest(index_dir))
    if not (folder / "vectors.npy").exists():
        raise ConfigError(f"{folder} has no vectors.npy: make it with `carpool bench data`")
    wishes = {"vectors": folder / "vectors.npy", "seed": seed}
    return built(folder / "corpus.jsonl", index_dir, IndexerConfig(), **wishes)


def settings_of(index: BenchIndex, options: HedraRagOptions) -> dict[str, str]:
    """Returns the settings of every searcher, as environment variables.

    Raises `ConfigError` where the mode would be another one with this memory.
    """
    is_paged, share = options.mode == "paged", options.memory_share
    exact_bytes = round(share * index.facts["segment_bytes"])
    budget_bytes = paged_bytes(index, share) if is_paged else exact_bytes
    given = {
        "budget_bytes": budget_bytes,
        "search_mode": "default" if is_paged else "exact",
        "fresh_bytes": 0,  # else half of the budget may be kept for a second base
    }
    return {environment_name("searcher", name): str(value) for name, value in given.items()}


def paged_bytes(index: BenchIndex, share: float) -> int:
    """Returns a share of the bytes of all codes. Raises `ConfigError` where it pages no codes."""
    with closing(open_index(index.dir)) as opened:
        codes = opened.open_codes()
        settings = SearcherSettings(budget_bytes=round(share * codes.size_bytes) if codes else 4096)
        chosen = choose_codes(opened, bytes_for_codes(opened, settings))
    if chosen is None or chosen.paged_bytes is None:
        what = "too little for paged codes" if chosen is None else "enough for all codes"
        raise ConfigError(
            f"{settings.budget_bytes:,} bytes are {what}: choose another --memory-share"
        )
    return settings.budget_bytes


def measured_alone(
    index: BenchIndex, environ: Mapping[str, str], questions: Sequence[str], url: str
) -> dict[str, Any]:
    """Returns what searches and texts of workflows take while nothing else runs. Blocks.

    `search_ms` is without `embed_ms`. `read_mb` is that of a search.
    """
    settings = load_settings(Sections, file=None, environ=environ).searcher
    settings = msgspec.structs.replace(settings, direct_io="auto")
    named = EmbeddingSettings(model=index.manifest.embedding_model_name)
    embedder = load_question_embedder(named, index.manifest)
    embedder.encode(["The first text loads the model."])
    client = OpenAI(base_url=url, api_key="-", http_client=DefaultHttpxClient(trust_env=False))
    took: dict[str, list[float]] = {"embed_ms": [], "search_ms": [], "text_ms": []}
    read_mb = list[float]()

    def timed(what: str, began_s: float) -> float:
        took[what].append(1e3 * ((now_s := time.monotonic()) - began_s))
        return now_s

    def search(text: str) -> Found:
        began_s, read = time.monotonic(), process_read_bytes()
        vectors = embedder.encode([text])
        began_s = timed("embed_ms", began_s)
        (found,) = searcher.search(vectors, top_k=TOP_K)
        timed("search_ms", began_s)
        read_mb.append((process_read_bytes() - read) / 1e6)
        return Found(found.hits)

    def write(prompt: FilledPrompt, tokens_max: int) -> str:
        began_s = time.monotonic()
        given = (("system", prompt.system), ("user", prompt.user))
        said: Any = [{"role": role, "content": text} for role, text in given]
        asked: Any = {"model": STAND_IN_MODEL, "max_tokens": tokens_max}
        reply = client.chat.completions.create(messages=said, **asked)
        timed("text_ms", began_s)
        return reply.choices[0].message.content or ""

    programs = load_programs()
    with client, LocalSearcher(index.dir, settings=settings) as searcher:
        for at, question in enumerate(questions[:ALONE]):
            program = find(programs, FIVE[at % len(FIVE)])
            assert program is not None
            run_program(program, question, search, write)
    return {
        "budget_mb": settings.budget_bytes / 1e6,
        **{f"{name} p50 / p99 / max": spread(values) for name, values in took.items()},
        "read_mb": median(read_mb),
    }
