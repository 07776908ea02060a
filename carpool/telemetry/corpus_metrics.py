"""The metrics of the corpus: what the indexer makes of documents, and what searchers have."""

from __future__ import annotations

from carpool.telemetry.metric_group import MetricGroup, counter, gauge


class IndexerMetrics(MetricGroup):
    """Documents of the corpus and their passages."""

    documents = counter(
        "documents_indexed_total", "Documents: indexed, deleted, refused, repeated.", "outcome"
    )
    passages = counter(
        "passages_indexed_total",
        "Passages by vector: embedded, known (of an equal text), given.",
        "vectors",
    )
    bases_saved = counter("corpus_bases_saved_total", "Bases that were saved.")
    fresh_bytes = gauge(
        "corpus_unsaved_bytes",
        "Bytes of the documents that no base has, by the indexer that saves bases. At half of "
        "searcher.fresh_bytes it saves one.",
    )


class CorpusMetrics(MetricGroup):
    """What a searcher has of the documents that came after its base."""

    folded = counter(
        "corpus_records_total", "Records that were folded: put, deleted, refused.", "kind"
    )
    fresh_bytes = gauge(
        "corpus_fresh_bytes",
        "Bytes of fresh rows in memory. At searcher.fresh_bytes newer documents are not found.",
    )
    base_swaps = counter(
        "corpus_base_swaps_total",
        "Newer bases that were opened: beside the old one, or paused: after it was closed.",
        "how",
    )
    fresh_rows = gauge("corpus_fresh_rows", "Fresh rows in memory, hidden ones too.")
