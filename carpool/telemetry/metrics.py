"""The list of all metrics: name, type, unit, labels, and the meaning of a rise."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from carpool.telemetry.tokens import TokenCounter
from schemas.errors import REASONS

SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
SECONDS = (*SHORT_SECONDS, 1, 2.5, 5, 10, 30, 60, 120)
STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 64)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    """All metrics of Carpool in one registry. Pass it as a parameter: there is no global one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        make = _Factory(self.registry)
        self.loop = LoopMetrics(make)
        for reason in REASONS:  # a counter that begins at 1 has no rise that an alert could see
            self.loop.dead_letters.labels(reason=reason)
        self.delivery = DeliveryMetrics(make)
        self.grouper = GrouperMetrics(make)
        self.searcher = SearcherMetrics(make)
        self.generator = GeneratorMetrics(make)
        self.workflow = WorkflowMetrics(make)


class _Factory:
    """Makes metrics with the common prefix in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, means: str, *labels: str) -> Counter:
        return Counter(f"carpool_{name}", means, labels, registry=self._registry)

    def gauge(self, name: str, means: str, *labels: str) -> Gauge:
        return Gauge(f"carpool_{name}", means, labels, registry=self._registry)

    def seconds(self, name: str, means: str, *labels: str) -> Histogram:
        return self.histogram(name, means, SECONDS, *labels)

    def histogram(
        self, name: str, means: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"carpool_{name}", means, labels, buckets=buckets, registry=self._registry)


class LoopMetrics:
    """Records and partitions of the loop, its index, and counts of every service."""

    def __init__(self, make: _Factory) -> None:
        self.records_consumed = make.counter(
            "records_consumed_total", "Records taken in. No rise: idle, or stuck.", "topic"
        )
        self.record_seconds = make.seconds(
            "record_seconds",
            "Time of a record by step: kafka_wait until taken in, process until finished, commit "
            "until committed.",
            "topic",
            "step",
        )
        self.stage_seconds = make.seconds("stage_seconds", "Time of one stage of a query.", "stage")
        self.answers = make.counter(
            "answers_total", "Terminal answers by status.", "stage", "status"
        )
        self.dead_letters = make.counter(
            "dead_letters_total", "Records rejected. A rise: senders send bad input.", "reason"
        )
        self.query_failures = make.counter(
            "query_failures_total",
            "Queries that failed in processing, by outcome: again (retried), failed. A rise: the "
            "index or the LLM server has a problem.",
            "stage",
            "outcome",
        )
        self.units_in_flight = make.gauge(
            "units_in_flight", "Input records that are not completed. A rise: a slow service."
        )
        self.lag_records = make.gauge(
            "lag_records", "Records that wait. A rise: a slow service.", "topic", "partition"
        )
        self.lag_seconds = make.gauge(
            "lag_seconds",
            "Upper bound of the wait of the oldest record. A rise: the service is too slow.",
        )
        self.clock_behind_seconds = make.gauge(
            "clock_behind_seconds",
            "Lead of record times over the host's clock: deadlines pass late. Below 0: the lead of "
            "this clock plus the shortest wait of a record in a minute: deadlines pass early.",
        )
        self.intake_paused = make.gauge(
            "intake_paused", "1 while intake is paused after a failure or a refusal."
        )
        self.rebalances = make.counter(
            "rebalances_total", "Assignments and revocations. A rise: members come and go.", "event"
        )
        self.rebalance_seconds = make.seconds(
            "rebalance_seconds", "Time for which a rebalance delayed the retained partitions."
        )
        self.last_progress_seconds = make.gauge(
            "last_progress_timestamp_seconds",
            "Epoch seconds when a record was last accepted or finished, or no record waited.",
        )
        self.partition_moved_seconds = make.gauge(
            "partition_moved_timestamp_seconds",
            "Epoch seconds when a partition last moved, or no record waited in it.",
            "topic",
            "partition",
        )
        self.fetch_errors = make.counter(
            "fetch_errors_total",
            "Fetches that failed. A lasting rise: a partition cannot be read, see /readyz.",
            "topic",
            "partition",
        )
        self._make_of_index(make)

    def _make_of_index(self, make: _Factory) -> None:
        """Makes the metrics of the index that a service has open."""
        self.index_info = make.gauge(
            "index_info",
            "1 for the index that a grouper or searcher has open. All must have the same version.",
            "version",
        )
        self.queries_returned = make.counter(
            "queries_returned_total",
            "Queries whose group was planned with an older index, to be planned again. A lasting "
            "rise: restart the groupers with the index of the searchers.",
        )


class DeliveryMetrics:
    """Outputs and commits."""

    def __init__(self, make: _Factory) -> None:
        self.records_produced = make.counter(
            "records_produced_total", "Records acknowledged by the brokers.", "topic"
        )
        self.hints_dropped = make.counter(
            "hints_dropped_total",
            "Best-effort records (drafts, pieces of answers) that were lost. A rise: brokers "
            "are slow.",
        )
        self.commits = make.counter(
            "commits_total", "Commits by outcome. A rise of failures: brokers refuse.", "outcome"
        )
        self.commit_seconds = make.seconds("commit_seconds", "Time of a commit with its outputs.")
        self.transactions = make.counter(
            "transactions_total",
            "Transactions by outcome: committed, aborted, fenced, refused; retried: a repeated "
            "call to the brokers. A rise of any but the first: brokers have a problem.",
            "outcome",
        )


class GrouperMetrics:
    """Windows and groups."""

    def __init__(self, make: _Factory) -> None:
        self.window_queries = make.histogram(
            "window_queries", "Queries in a window. A rise: backlog.", COUNTS
        )
        self.group_queries = make.histogram(
            "group_queries", "Queries in a group. A rise: more sharing.", COUNTS
        )


class SearcherMetrics:
    """Clusters, reads and the memory budget."""

    def __init__(self, make: _Factory) -> None:
        self.cluster_requests = make.counter(
            "cluster_requests_total", "Clusters requested, by tier where found.", "tier"
        )
        self.bytes_read = make.counter(
            "bytes_read_total",
            "Bytes read from the index: demand (clusters and rows that queries need), codes (that "
            "do not fit memory), passages (of results), prefetch (clusters that later queries "
            "need).",
            "purpose",
        )
        self.prefetches = make.counter(
            "prefetches_total", "Prefetched clusters: used, wasted, late.", "result"
        )
        self.evictions = make.counter(
            "evictions_total", "Clusters evicted. A rise: the budget is too small."
        )
        self.drafts = make.counter("drafts_total", "Drafts that were sent by long searches.")
        self.resident_bytes = make.gauge("resident_bytes", "Bytes of the budget in use.", "kind")
        self.budget_bytes = make.gauge(
            "budget_bytes", "The memory budget for codes, clusters and reads."
        )
        self.audited_ids = make.counter(
            "audited_ids_total",
            "Ids found by exact searches that check searches with codes: one query in 1,000, "
            "while the searcher is idle.",
        )
        self.missed_ids = make.counter(
            "missed_ids_total",
            "Of these, ids that the search with codes had missed. At most 2 in 1,000 by default.",
        )
        self.clusters_damaged = make.counter(
            "clusters_damaged_total", "Reads that failed their checksum. Must stay zero."
        )
        self._make_of_shard(make)

    def _make_of_shard(self, make: _Factory) -> None:
        """Makes the metrics of the hot shard; all stay 0 without one."""
        self.shard_probes = make.counter(
            "shard_probes_total",
            "Clusters that queries probed, by the side that scanned them: shard or codes. The "
            "share of the shard is its hit rate.",
            "side",
        )
        self.shard_bytes = make.gauge("shard_bytes", "Bytes of the clusters in the hot shard.")
        self.shard_swaps = make.counter(
            "shard_swaps_total",
            "Clusters swapped: loaded, left, full (it did not fit), failed (it could not be read).",
            "result",
        )
        self.shard_failed = make.gauge(
            "shard_failed",
            "1 after the device of the hot shard has failed: codes are scanned instead. Restart "
            "the searcher.",
        )


class GeneratorMetrics:
    """Requests to the LLM server, citations, and duplicates of answers."""

    def __init__(self, make: _Factory) -> None:
        self._make_of_servers(make)
        self.llm_requests = make.counter(
            "llm_requests_total",
            "Requests to the LLM server by outcome; canary: one token, to tell whether a refused "
            "prompt or the server is the cause. A rise of other ones than answered: it refuses.",
            "outcome",
        )
        self.llm_in_flight = make.gauge(
            "llm_requests_in_flight", "Requests at the LLM servers now."
        )
        self.llm_concurrency = make.gauge(
            "llm_concurrency",
            "Requests that an LLM server may get at once. It falls when the server is overloaded.",
            "server",
        )
        self.time_to_first_token_seconds = make.seconds(
            "time_to_first_token_seconds", "Time from request to first token."
        )
        self.tokens = TokenCounter(
            make.counter(
                "tokens_total",
                "Tokens by kind. Paid: computed (of prompts); output; broken (written for answers "
                "that broke off or were cancelled); warmed_used and warmed_in_vain (computed by "
                "warm-ups, and then part of a prompt or not). Saved: cached (prompt tokens that "
                "the prefix cache had); reused (input and output of answers that were given "
                "again). Tenants after the first 100 are `other`; no tenant is `none`.",
                "kind",
                "tenant",
            ),
        )
        self.citations = make.counter(
            "citations_total",
            "Citations: by the model, with a sentence of the passage that supports it or without "
            "(`unsupported`) or of no passage (`invented`); `text`: found by Carpool.",
            "result",
        )
        self.dedup_decisions = make.counter(
            "answer_ledger_decisions_total",
            "Records without a generation: replayed, reused (answered with the answer to an equal "
            "prompt), conflict (the id of another question), skipped (answered before a crash); "
            "and unreadable answers, ignored.",
            "result",
        )
        self.warm_ups = make.counter(
            "warm_ups_total",
            "Warm-ups of the LLM server's prefix cache: done, cancelled, refused, text (the server "
            "takes no token ids).",
            "outcome",
        )
        self.followers = make.gauge(
            "prompts_following",
            "Queries that wait for the answer to an equal prompt. A rise without answers: the LLM "
            "server or the commits are slow.",
        )

    def _make_of_servers(self, make: _Factory) -> None:
        """Makes the metrics that each LLM server has: label `server`, its HOST:PORT."""
        self.llm_server_open = make.gauge(
            "llm_server_open",
            "1 while an LLM server takes prompts; 0 while it refuses, or is not checked yet. The "
            "log says why.",
            "server",
        )
        self.llm_server_requests = make.counter(
            "llm_server_requests_total",
            "Requests to each LLM server. Uneven rates: servers differ in speed, or in what they "
            "have cached.",
            "server",
        )
        self.kv_known = make.gauge(
            "kv_cache_known",
            "1 while it is known what a server has cached; 0: prompts go to it in the order of "
            "arrival.",
            "server",
        )
        self.kv_blocks = make.gauge(
            "kv_cache_blocks",
            "Blocks that a server is known to have cached, on its GPU and on the host.",
            "server",
        )
        self.kv_events = make.counter(
            "kv_cache_events_total",
            "KV events of a server: replayed (lost events were requested again), emptied (events "
            "were lost for good, or the server was restarted), unreadable (a batch). Answers: "
            "agreed (as many prompt tokens were cached as expected), more (another request had "
            "just computed them), less. A rise of less: another program uses the server, or its "
            "events come late.",
            "server",
            "event",
        )


class WorkflowMetrics:
    """Steps of workflows, and workflows that a generator has ended.

    A workflow is in one record at a time, so no service knows how many have begun.
    """

    def __init__(self, make: _Factory) -> None:
        self.steps_in_progress = make.gauge(
            "workflow_steps_in_progress",
            "Steps in this service: retrieve (in a grouper), generate (in a generator). A rise: "
            "backlog.",
            "kind",
        )
        self.steps = make.counter(
            "workflow_steps_total",
            "Finished steps: retrieve; generate; shared (the text of an equal step).",
            "kind",
        )
        self.ended = make.counter(
            "workflows_total", "Workflows that ended, by status of the answer.", "program", "status"
        )
        self.length_steps = make.histogram(
            "workflow_length_steps", "Steps of a workflow that ended, without its answer.", STEPS
        )
        self.length_rounds = make.histogram(
            "workflow_length_rounds",
            "Rounds of a workflow that ended: steps side by side are one round.",
            STEPS,
        )
