"""The options of `carpool bench live`. A docstring is its command's help."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from bench.core.options import DataOption, SeedOption, ServiceOptions
from bench.services.options import WarmUpOption

RowsOption = Annotated[int, Option(min=2_000, help="Passages of the base, grown out of the data.")]
RateOption = Annotated[float, Option("--rate", min=0.1, help="Questions a second.")]
VectorsOption = Annotated[float, Option(min=0, help="Given vectors that are put a second.")]
PassagesOption = Annotated[int, Option(min=1, max=512, help="Passages of a document.")]


class LiveOptions(ServiceOptions, frozen=True, kw_only=True):
    """Options of all parts."""

    data: DataOption = None
    rows: RowsOption = 200_000
    seed: SeedOption = 0


class LoadOptions(LiveOptions, frozen=True, kw_only=True):
    """Options of parts with services, questions and changes."""

    seconds: Annotated[float, Option(min=5, help="How long each load is measured.")] = 60.0
    warm_up_s: WarmUpOption = 20.0
    rate_per_s: RateOption = 20.0
    vectors_per_s: VectorsOption = 1_000.0
    passages: PassagesOption = 10


class FreshnessOptions(LoadOptions, frozen=True, kw_only=True):
    """How long until a put is searched, and what do writes and saved bases do to questions?

    Sends questions without writes; then the same beside documents with given vectors, which replace
    earlier ones, while bases are saved. Then documents with text only, which the indexer embeds.
    Services run on Apache Kafka, without an LLM.

    Ends with 1 when a put is searchable later than 150 ms (p50) or 500 ms (p99), the p99 of
    questions is over 1.2 (between saves) or 1.5 (during one) of that without writes, fewer than
    three bases were saved, or a question has no answer or one of another revision.
    """

    saves: Annotated[int, Option(min=0, help="Bases to save, about; 0: as fresh_bytes says.")] = 4
    texts: Annotated[int, Option(min=0, help="Documents with text only.")] = 200


class StreamOptions(LiveOptions, frozen=True, kw_only=True):
    """Is a base with fresh rows as good as a new build of the same rows?

    In process, without services: a stream of inserts, replaced and deleted documents, whose topics
    come one after the other, over a base that has the first topics. After each of ten rounds it is
    compared with a new build at the same nlist and nprobe.

    Ends with 1 when recall is below 0.998 of the new build's, codes scanned are over 1.2 of its,
    memory is over its and fresh_bytes, or a search does not find what its mode promises.
    """

    nlist: Annotated[int, Option(min=0, help="Clusters; 0: twice the root of the rows.")] = 0
    questions: Annotated[int, Option(min=10, help="Real questions of a checkpoint.")] = 500
    retrain: Annotated[
        bool, Option("--retrain", help="New centroids where `corpus save --retrain` is advised.")
    ] = False


class SwapsOptions(LoadOptions, frozen=True, kw_only=True):
    """Is an answer lost, mixed or late while the searcher swaps its base?

    Questions and puts go on all the time; bases are saved one after the other.

    Ends with 1 when an answer is lost, is there twice or is of two states, or none comes for over
    200 ms around a swap, or the old base was closed before the new one was open.
    """

    swaps: Annotated[int, Option(min=1, help="Bases to save.")] = 20
    vectors_per_s: VectorsOption = 100.0
    seconds: Annotated[float, Option(min=2, help="Seconds before the first one.")] = 20.0


class RestartOptions(LoadOptions, frozen=True, kw_only=True):
    """What does a searcher take that begins with much to fold, and the log, a byte of text?

    Fills the memory of fresh rows, and starts a searcher again, a second one, and a frozen one.
    Then questions are repeated, without writes and beside them, with a stand-in for an LLM: how
    many get the answer of the first time? It promises nothing.
    """

    fresh_mb: Annotated[int, Option(min=8, help="Memory for fresh rows: MiB.")] = 256
    texts: Annotated[int, Option(min=1, help="Documents with text only.")] = 50
    questions: Annotated[int, Option(min=10, help="Questions that are repeated.")] = 600


class FrozenOptions(LoadOptions, frozen=True, kw_only=True):
    """What do questions cost over a frozen index, and over a live one to which nothing comes?

    Both are asked in turn, on one broker, without an LLM.

    Ends with 1 when a question has no answer or two, or the p50 of the live side is over 1.05 of
    that of the frozen one.
    """
