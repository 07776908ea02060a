"""The one list of metrics: name, type, unit, labels, and what a rise means. A misspelt name is a
type error.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
)
COUNTS_FROM_0 = (0, 1, 2, 3, 4, 6, 8, 16, 32, 64, 100)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Metrics:
    """Every metric that Carpool exports, over one registry. Pass it in; there is no global one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()

        def counter(name: str, means: str, *labels: str) -> Counter:
            return Counter(f"carpool_{name}", means, labels, registry=self.registry)

        def gauge(name: str, means: str, *labels: str) -> Gauge:
            return Gauge(f"carpool_{name}", means, labels, registry=self.registry)

        def histogram(name: str, means: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"carpool_{name}", means, labels, buckets=buckets, registry=self.registry
            )

        # The loop
        self.records_consumed = counter(
            "records_consumed_total", "Records taken in. A halt means no work.", "topic"
        )
        self.records_produced = counter(
            "records_produced_total", "Records acknowledged by the brokers.", "topic"
        )
        self.hints_dropped = counter(
            "hints_dropped_total", "Best-effort records that were lost. A rise: brokers are slow."
        )
        self.dead_letters = counter(
            "dead_letters_total", "Records refused. A rise: somebody sends rubbish.", "reason"
        )
        self.query_failures = counter(
            "query_failures_total",
            "Queries that failed in processing, by what came of it: again, failed. A rise: index "
            "or LLM server are in trouble.",
            "stage",
            "outcome",
        )
        self.answers = counter("answers_total", "Terminal answers by status.", "stage", "status")
        self.commits = counter(
            "commits_total", "Commits by outcome. A rise of failures: brokers refuse.", "outcome"
        )
        self.commit_seconds = histogram(
            "commit_seconds", "Time of a commit, outputs included.", SECONDS
        )
        self.transactions = counter(
            "transactions_total",
            "Transactions by outcome: committed, aborted, fenced, refused; retried: a call to the "
            "brokers, made again. A rise of any but the first: brokers are in trouble.",
            "outcome",
        )
        self.record_seconds = histogram(
            "record_seconds",
            "Time of a record by step: kafka_wait until it is taken in, process until its output "
            "is finished, commit until that is written for good.",
            SECONDS,
            "topic",
            "step",
        )
        self.units_in_flight = gauge(
            "units_in_flight",
            "Input records that still owe an output that brokers took. A rise: work piles up.",
        )
        self.bytes_in_flight = gauge("bytes_in_flight", "Bytes of the input records in flight.")
        self.lag_records = gauge(
            "lag_records",
            "Records waiting, from position(). A rise: too slow.",
            "topic",
            "partition",
        )
        self.lag_seconds = gauge(
            "lag_seconds",
            "How long the oldest record that waits has waited, at most. A rise: too slow.",
        )
        self.paused_seconds = counter(
            "paused_seconds_total", "Time with intake paused for lack of credit."
        )
        self.intake_paused = gauge("intake_paused", "1 while intake is paused for lack of credit.")
        self.rebalances = counter(
            "rebalances_total", "Assignments and revocations. A rise: members come and go.", "event"
        )
        self.rebalance_seconds = histogram(
            "rebalance_seconds",
            "Time for which a rebalance held up the partitions that stayed.",
            SECONDS,
        )
        self.done_discarded = counter(
            "done_discarded_total", "Finished parts whose partition was lost meanwhile."
        )
        self.last_progress_seconds = gauge(
            "last_progress_timestamp_seconds",
            "Epoch seconds when something was last taken in or finished, or nothing waited.",
        )
        self.partition_moved_seconds = gauge(
            "partition_moved_timestamp_seconds",
            "Epoch seconds when a partition last moved, or nothing waited in it.",
            "topic",
            "partition",
        )
        self.spans = counter(
            "spans_total",
            "Spans of traces by outcome: exported, failed, dropped. A rise of the last two: the "
            "collector is too slow or away.",
            "outcome",
        )
        self.stage_seconds = histogram(
            "stage_seconds", "Time of one stage of a query.", SECONDS, "stage"
        )
        # The grouper
        self.window_queries = histogram(
            "window_queries", "Queries a window. A rise: backlog.", COUNTS
        )
        self.window_wait_seconds = histogram(
            "window_wait_seconds", "Wait of a query for its window to close.", SECONDS
        )
        self.group_queries = histogram(
            "group_queries", "Queries a group. A rise: more sharing.", COUNTS
        )
        self.group_overlap = histogram(
            "group_overlap_ratio", "Share of a group's probes that are not its first.", SHARES
        )
        self.horizon_windows = histogram(
            "horizon_windows",
            "Windows known ahead when one leaves. A rise: backlog.",
            COUNTS_FROM_0,
        )
        # The searcher
        self.cluster_requests = counter(
            "cluster_requests_total", "Clusters asked for, by tier where found.", "tier"
        )
        self.bytes_read = counter("bytes_read_total", "Bytes read from the index.", "purpose")
        self.prefetches = counter(
            "prefetches_total", "Prefetched clusters: used, wasted, late.", "result"
        )
        self.evictions = counter(
            "evictions_total", "Clusters evicted. A rise: the budget is too small."
        )
        self.resident_bytes = gauge("resident_bytes", "Bytes of the budget in use.", "kind")
        self.budget_bytes = gauge("budget_bytes", "The budget of the cluster cache.")
        self.clusters_damaged = counter(
            "clusters_damaged_total", "Reads that failed their check. Must stay zero."
        )
        # The generator
        self.llm_requests = counter(
            "llm_requests_total", "Requests to the LLM server by outcome.", "outcome"
        )
        self.llm_in_flight = gauge("llm_requests_in_flight", "Requests at the LLM server now.")
        self.time_to_first_token_seconds = histogram(
            "time_to_first_token_seconds", "Request to first token.", SECONDS
        )
        self.tokens = counter("tokens_total", "Tokens by kind: input, cached, output.", "kind")
        self.citations = counter(
            "citations_total", "Citations: valid, or dropped as out of range.", "result"
        )
        self.answer_ledger_ids = gauge(
            "answer_ledger_ids",
            "Answered query ids in memory. Near generator.ledger_ids_max the oldest are forgotten.",
        )
        self.answer_ledger_decisions = counter(
            "answer_ledger_decisions_total",
            "Records that were not generated: replayed, conflict (an id of another question), "
            "skipped (answered before a crash); and unreadable answers, passed over.",
            "result",
        )
