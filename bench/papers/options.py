"""The options of `carpool bench paper NAME`. A docstring is the help of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from typer import Option

from bench.core.options import DataOption, JsonOption, NprobeOption, SeedOption
from bench.services.options import CorpusOptions

Mode: TypeAlias = Literal["exact", "paged"]


class PaperOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every paper."""

    seed: SeedOption = 0
    json_file: JsonOption = None


class CagrOptions(PaperOptions, frozen=True, kw_only=True):
    """CaGR-RAG: query grouping. Hits and bytes of its algorithm, and of Carpool's plan.

    Real questions in batches of a random size from 20 to 100, nprobe 10, a cache of 40 clusters
    (EdgeRAG's), theta 0.1, 0.5 and 0.9; Carpool has the bytes of 40 clusters. docs/figures/ says
    what was found, and what differs from the paper.

    Ends with 1 when Carpool reads more than half of the bytes of EdgeRAG.
    """

    index: Annotated[Path, Option(metavar="DIR", help="The index: nlist 100.")]
    data: DataOption = None


class VectorLiteOptions(PaperOptions, frozen=True, kw_only=True):
    """VectorLiteRAG: does the model of the hot set choose few bytes that are enough?

    Half of the questions are profiled, the others judge. For five targets: the chosen hot set, that
    of Eq. 3 to 10 as printed, and the oracle: the smallest one that meets the target with questions
    of the other half, in a simulation with the measured times of scans.

    Ends with 1 when hot sets take more than 1.15 times the least bytes, or do not meet their
    targets: the median of three splits of the questions.
    """

    index: Annotated[Path, Option(metavar="DIR", help="An index with codes.")]
    questions: Annotated[
        Path, Option(metavar="FILE.npy", help="Vectors of real questions, by its model.")
    ]
    nprobe: NprobeOption = 24
    rounds: Annotated[int, Option(min=1, help="Times that every batch is measured.")] = 20


class RagCacheOptions(PaperOptions, frozen=True, kw_only=True):
    """RAGCache: which order of prompts, and which policy of the host's memory, saves most tokens?

    Sends streams of prompts, of real questions and passages, to vLLM's own scheduler; only the
    model and the copies to the host are left out. From a backlog of 1,024 through the generator's
    queue: in the order of arrival, in RAGCache's order (5.2), in ours, and as if no block were
    computed twice (the oracle). As they arrive, with 0, 1 and 4 times the GPU's memory on the host:
    by LRU, ARC, PGDSF (5.1), and the farthest next use (the oracle).

    Needs vLLM. Ends with 1 when our order finds less than 14 % of the tokens of the natural stream
    in the cache, 65 % by Zipf, 20 % in RAGPulse's shape, or PGDSF less than LRU.
    """

    data: DataOption = None


class SpeculationOptions(PaperOptions, frozen=True, kw_only=True):
    """AquaPipe, HedraRAG 4.3, RAGCache 5.3: which passages are computed while a search runs?

    Searches 400 HotpotQA questions cluster by cluster, the nearest first, with nlist 100 and 1000,
    and tells each paper's policy, ours (auto) and an oracle what each draft would have had, on
    virtual time.

    Ends with 1 when `auto` saves less than 0.75 of what the oracle saves for searches of a second,
    or 0.6 for half a second, or computes more than a fifth of the tokens in vain.
    """

    data: DataOption = None


class HedraRagOptions(CorpusOptions, frozen=True, kw_only=True):
    """HedraRAG 6: workflows under load. Latency by rate, and the highest rate at an SLO.

    HotpotQA and NQ questions over the passages, with five workflows in turn: by Carpool (exactly
    once, on Apache Kafka from KAFKA_HOME), by Carpool with windows of one, by LangGraph with its
    SQLite checkpointer, and by a blocking loop over batches; with the same programs, templates,
    index, and stand-in for the LLM. Then, with mixed workflows, what a kill costs, and what a step
    takes if the LLM answers at once.

    With --collection, searches are slow: of a grown set, with one mode and budget for all, and a
    stand-in with a prefix cache. First it measures searches and texts alone: choose a --speed at
    which they take as long. Nothing is killed. Exact searches have rows for sub-stages (Eq. 1):
    `no-substages`, where searches wait for those before them, and `fixed-substages`, of eight
    clusters (figure 16 of the paper).

    Ends with 1 when a question of Carpool has not one answer, also when Carpool is killed.
    """

    seconds: Annotated[float, Option(min=1, help="How long a rate is asked for.")] = 30.0
    speed: Annotated[float, Option(min=0.1, help="Of the LLM; the measured server has 1.")] = 10.0
    langgraph: Annotated[
        Path, Option(metavar="DIR", help="Environment of LangGraph and of the blocking loop.")
    ] = Path(".carpool/langgraph")
    workflow: Annotated[
        list[str], Option(metavar="NAME", help="One alone, or mixed; repeatable.")
    ] = msgspec.field(default_factory=lambda: ["mixed"])
    contestant: Annotated[list[str], Option(metavar="NAME", help="Repeatable. Default: all.")] = (
        msgspec.field(default_factory=list)
    )
    slo_s: Annotated[
        float, Option("--slo", min=0.1, help="Seconds; the p99 that ends a curve.")
    ] = 10.0
    rate_step: Annotated[float, Option(min=1.01, help="From a rate to the next one.")] = 1.25
    questions: Annotated[int, Option(min=10, help="At least so many for a rate.")] = 10
    collection: Annotated[
        Path | None,
        Option(metavar="DIR", help="A set of `carpool bench data`; its index is built if absent."),
    ] = None
    mode: Annotated[Mode, Option(help="Of the searches of --collection.")] = "exact"
    memory_share: Annotated[
        float, Option(min=0.001, max=1, help="Memory over the bytes of clusters, or of codes.")
    ] = 0.1


class NearnessOptions(PaperOptions, frozen=True, kw_only=True):
    """HedraRAG 4.3: how near is a workflow's next search to what is known before it?

    The model of `make setup-vllm` writes the texts of `hyde` and `irg` for HotpotQA questions
    (minutes on two cores; they are kept in .carpool/bench). Measures parts of a text, the question,
    and the last search against the search that follows; the order by history; and the bytes that
    announcing clusters saves in the plans of exact searches and of paged codes, against an oracle.
    """

    data: DataOption = None
