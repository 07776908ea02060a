"""The list of all metrics: name, type, unit, labels, and the meaning of a rise."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from carpool.telemetry.corpus_metrics import CorpusMetrics, IndexerMetrics
from carpool.telemetry.gateway_metrics import GatewayMetrics
from carpool.telemetry.metric_group import (
    COUNTS,
    STEPS,
    MetricGroup,
    counter,
    gauge,
    histogram,
    seconds,
)
from carpool.telemetry.tokens import TokenCounter
from schemas.errors import REASONS


class LoopMetrics(MetricGroup):
    """Records and partitions of the loop, its index, and counts of every service."""

    records_consumed = counter(
        "records_consumed_total", "Records taken in. No rise: idle, or stuck.", "topic"
    )
    record_seconds = seconds(
        "record_seconds",
        "Time of a record by step: kafka_wait until taken in, process until finished, commit "
        "until committed.",
        "topic",
        "step",
    )
    stage_seconds = seconds("stage_seconds", "Time of one stage of a query.", "stage")
    ended = counter("answers_total", "Terminal answers by status.", "stage", "status")
    dead_letters = counter(
        "dead_letters_total", "Records rejected. A rise: senders send bad input.", "reason"
    )
    failures = counter(
        "query_failures_total",
        "Queries that failed in processing, by outcome: again (retried), failed. A rise: the "
        "index or the LLM server has a problem.",
        "stage",
        "outcome",
    )
    units_in_flight = gauge(
        "units_in_flight", "Input records that are not completed. A rise: a slow service."
    )
    lag_records = gauge(
        "lag_records", "Records that wait. A rise: a slow service.", "topic", "partition"
    )
    lag_seconds = gauge(
        "lag_seconds",
        "Upper bound of the wait of the oldest record. A rise: the service is too slow.",
    )
    clock_behind_seconds = gauge(
        "clock_behind_seconds",
        "Lead of record times over the host's clock: deadlines pass late. Below 0: the lead of "
        "this clock plus the shortest wait of a record in a minute: deadlines pass early.",
    )
    intake_paused = gauge("intake_paused", "1 while intake is paused after a failure or a refusal.")
    rebalances = counter(
        "rebalances_total", "Assignments and revocations. A rise: members come and go.", "event"
    )
    rebalance_seconds = seconds(
        "rebalance_seconds", "Time for which a rebalance delayed the retained partitions."
    )
    last_progress_seconds = gauge(
        "last_progress_timestamp_seconds",
        "Epoch seconds when a record was last accepted or finished, or no record waited.",
    )
    partition_moved_seconds = gauge(
        "partition_moved_timestamp_seconds",
        "Epoch seconds when a partition last moved, or no record waited in it.",
        "topic",
        "partition",
    )
    fetch_errors = counter(
        "fetch_errors_total",
        "Fetches that failed. A lasting rise: a partition cannot be read, see /readyz.",
        "topic",
        "partition",
    )

    index_info = gauge(
        "index_info",
        "1 for the index that a grouper or searcher has open. All must have the same version.",
        "version",
    )
    queries_returned = counter(
        "queries_returned_total",
        "Queries whose group was planned with an older index, to be planned again. A lasting "
        "rise: restart the groupers with the index of the searchers.",
    )


class DeliveryMetrics(MetricGroup):
    """Outputs and commits."""

    records_produced = counter(
        "records_produced_total", "Records acknowledged by the brokers.", "topic"
    )
    hints_dropped = counter(
        "hints_dropped_total",
        "Best-effort records (drafts, pieces of answers) that were lost. A rise: brokers are slow.",
    )
    commits = counter(
        "commits_total", "Commits by outcome. A rise of failures: brokers refuse.", "outcome"
    )
    commit_seconds = seconds("commit_seconds", "Time of a commit with its outputs.")
    transactions = counter(
        "transactions_total",
        "Transactions by outcome: committed, aborted, fenced, refused; retried: a repeated "
        "call to the brokers. A rise of any but the first: brokers have a problem.",
        "outcome",
    )


class GrouperMetrics(MetricGroup):
    """Windows and groups."""

    window_queries = histogram("window_queries", "Queries in a window. A rise: backlog.", COUNTS)
    group_queries = histogram("group_queries", "Queries in a group. A rise: more sharing.", COUNTS)


class SearcherMetrics(MetricGroup):
    """Clusters, reads and the memory budget."""

    cluster_requests = counter(
        "cluster_requests_total", "Clusters requested, by tier where found.", "tier"
    )
    bytes_read = counter(
        "bytes_read_total",
        "Bytes read from the index: demand (clusters and rows that queries need), codes (that "
        "do not fit memory), passages (of results), prefetch (clusters that later queries "
        "need).",
        "purpose",
    )
    prefetches = counter("prefetches_total", "Prefetched clusters: used, wasted, late.", "result")
    evictions = counter("evictions_total", "Clusters evicted. A rise: the budget is too small.")
    drafts = counter("drafts_total", "Drafts that were sent by long searches.")
    resident_bytes = gauge("resident_bytes", "Bytes of the budget in use.", "kind")
    budget_bytes = gauge("budget_bytes", "The memory budget for codes, clusters and reads.")
    audited_ids = counter(
        "audited_ids_total",
        "Ids found by exact searches that check searches with codes: one query in 1,000, "
        "while the searcher is idle.",
    )
    missed_ids = counter(
        "missed_ids_total",
        "Of these, ids that the search with codes had missed. At most 2 in 1,000 by default.",
    )
    clusters_damaged = counter(
        "clusters_damaged_total", "Reads that failed their checksum. Must stay zero."
    )

    shard_probes = counter(
        "shard_probes_total",
        "Clusters that queries probed, by the side that scanned them: shard or codes. The "
        "share of the shard is its hit rate.",
        "side",
    )
    shard_bytes = gauge("shard_bytes", "Bytes of the clusters in the hot shard.")
    shard_swaps = counter(
        "shard_swaps_total",
        "Clusters swapped: loaded, left, full (it did not fit), failed (it could not be read).",
        "result",
    )
    shard_failed = gauge(
        "shard_failed",
        "1 after the device of the hot shard has failed: codes are scanned instead. Restart "
        "the searcher.",
    )


class GeneratorMetrics(MetricGroup):
    """Requests to the LLM server, citations, and duplicates of answers."""

    llm_requests = counter(
        "llm_requests_total",
        "Requests to the LLM server by outcome; canary: one token, to tell whether a refused "
        "prompt or the server is the cause. A rise of other ones than answered: it refuses.",
        "outcome",
    )
    llm_in_flight = gauge("llm_requests_in_flight", "Requests at the LLM servers now.")
    llm_concurrency = gauge(
        "llm_concurrency",
        "Requests that an LLM server may get at once. It falls when the server is overloaded.",
        "server",
    )
    time_to_first_token_seconds = seconds(
        "time_to_first_token_seconds", "Time from request to first token."
    )
    _tokens = counter(
        "tokens_total",
        "Tokens by kind. Paid: computed (of prompts); output; broken (written for answers "
        "that broke off or were cancelled); warmed_used and warmed_in_vain (computed by "
        "warm-ups, and then part of a prompt or not). Saved: cached (prompt tokens that "
        "the prefix cache had); reused (input and output of answers that were given "
        "again). Tenants after the first 100 are `other`; no tenant is `none`.",
        "kind",
        "tenant",
    )
    citations = counter(
        "citations_total",
        "Citations: by the model, with a sentence of the passage that supports it or without "
        "(`unsupported`) or of no passage (`invented`); `text`: found by Carpool.",
        "result",
    )
    dedup_decisions = counter(
        "answer_ledger_decisions_total",
        "Records without a generation: replayed, reused (answered with the answer to an equal "
        "prompt), conflict (the id of another question), skipped (answered before a crash); "
        "and unreadable answers, ignored.",
        "result",
    )
    warm_ups = counter(
        "warm_ups_total",
        "Warm-ups of the LLM server's prefix cache: done, cancelled, refused, text (the server "
        "takes no token ids).",
        "outcome",
    )
    followers = gauge(
        "prompts_following",
        "Queries that wait for the answer to an equal prompt. A rise without answers: the LLM "
        "server or the commits are slow.",
    )

    llm_server_open = gauge(
        "llm_server_open",
        "1 while an LLM server takes prompts; 0 while it refuses, or is not checked yet. The "
        "log says why.",
        "server",
    )
    llm_server_requests = counter(
        "llm_server_requests_total",
        "Requests to each LLM server. Uneven rates: servers differ in speed, or in what they "
        "have cached.",
        "server",
    )
    kv_known = gauge(
        "kv_cache_known",
        "1 while it is known what a server has cached; 0: prompts go to it in the order of "
        "arrival.",
        "server",
    )
    kv_blocks = gauge(
        "kv_cache_blocks",
        "Blocks that a server is known to have cached, on its GPU and on the host.",
        "server",
    )
    kv_events = counter(
        "kv_cache_events_total",
        "KV events of a server: replayed (lost events were requested again), emptied (events "
        "were lost for good, or the server was restarted), unreadable (a batch). Answers: "
        "agreed (as many prompt tokens were cached as expected), more (another request had "
        "just computed them), less. A rise of less: another program uses the server, or its "
        "events come late.",
        "server",
        "event",
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.tokens = TokenCounter(self._tokens)


class WorkflowMetrics(MetricGroup):
    """Steps of workflows, and workflows that a generator has ended.

    A workflow is in one record at a time, so no service knows how many have begun.
    """

    steps_in_progress = gauge(
        "workflow_steps_in_progress",
        "Steps in this service: retrieve (in a grouper), generate (in a generator). A rise: "
        "backlog.",
        "kind",
    )
    steps = counter(
        "workflow_steps_total",
        "Finished steps: retrieve; generate; shared (the text of an equal step).",
        "kind",
    )
    ended = counter(
        "workflows_total", "Workflows that ended, by status of the answer.", "program", "status"
    )
    length_steps = histogram(
        "workflow_length_steps", "Steps of a workflow that ended, without its answer.", STEPS
    )
    length_rounds = histogram(
        "workflow_length_rounds",
        "Rounds of a workflow that ended: steps side by side are one round.",
        STEPS,
    )


class Metrics:
    """All metrics of Carpool in one registry. Pass it as a parameter: there is no global one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.loop = LoopMetrics(self.registry)
        for reason in REASONS:  # a counter that begins at 1 has no rise that an alert could see
            self.loop.dead_letters.labels(reason=reason)
        self.delivery = DeliveryMetrics(self.registry)
        self.grouper = GrouperMetrics(self.registry)
        self.searcher = SearcherMetrics(self.registry)
        self.corpus = CorpusMetrics(self.registry)
        self.generator = GeneratorMetrics(self.registry)
        self.workflow = WorkflowMetrics(self.registry)
        self.indexer = IndexerMetrics(self.registry)
        self.gateway = GatewayMetrics(self.registry)
