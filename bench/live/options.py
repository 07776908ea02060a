"""The options of `carpool bench live`. A docstring is its command's help."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from bench.core.options import DataOption, SeedOption, ServiceOptions
from bench.services.options import SecondsOption, WarmUpOption

VectorsOption = Annotated[float, Option(min=0.01, help="Given vectors that are put a second.")]
SavesOption = Annotated[int, Option(min=1, help="Bases to ask for, at equal distances.")]
PASSAGES = 10
"""Of a document."""


class LiveOptions(ServiceOptions, frozen=True, kw_only=True):
    """Options of all parts. `seconds`: of each load."""

    data: DataOption = None
    rows: Annotated[int, Option(min=2_000, help="Passages, grown out of the data.")] = 200_000
    seed: SeedOption = 0
    seconds: SecondsOption = 60.0
    warm_up_s: WarmUpOption = 20.0
    rate_per_s: Annotated[float, Option("--rate", min=0.1, help="Questions a second.")] = 20.0
    vectors_per_s: VectorsOption = 1_000.0
    texts: Annotated[int, Option(min=1, help="Documents with text only.")] = 20


class FreshnessOptions(LiveOptions, frozen=True, kw_only=True):
    """How long until a put is searched, and what do writes and saved bases do to questions?

    Sends questions without writes; then beside documents with given vectors, which replace earlier
    ones, while bases are saved. Then documents with text only. Apache Kafka, no LLM.

    Ends with 1 when a put is searched later than 150 ms (p50) or 500 ms (p99), the p99 of questions
    is over 1.2 (between saves) or 1.5 (in one) of that without writes, there were fewer than three
    saves, or an answer is lost, twice, or of two states.
    """

    saves: SavesOption = 4


class SwapsOptions(FreshnessOptions, frozen=True, kw_only=True):
    """Is an answer lost, mixed or late while the searcher swaps its base? Few writes, many bases.

    Ends with 1 when an answer is lost, twice, or of two states, none comes for over 200 ms around a
    swap, or a swap had no room for two bases.
    """

    saves: SavesOption = 20
    vectors_per_s: VectorsOption = 100.0


class RestartOptions(LiveOptions, frozen=True, kw_only=True):
    """What does a searcher take that begins with much to fold, and the log for a byte of text?

    Fills the memory of fresh rows; starts a searcher again, a second and a frozen one. Then repeats
    the questions of --seconds, without and beside writes, with a stand-in for an LLM: how many get
    the answer of the first time? It promises nothing.
    """

    fresh_mb: Annotated[int, Option(min=8, help="Memory for fresh rows: MiB.")] = 256


class FrozenOptions(LiveOptions, frozen=True, kw_only=True):
    """What do questions cost over a frozen index, and over a live one to which nothing comes?

    In turn, without an LLM. Ends with 1 when an answer is lost or twice, or the p50 over the live
    one is over 1.05 of the other.
    """


class StreamOptions(LiveOptions, frozen=True, kw_only=True):
    """Is a base with fresh rows as good as a new build of the same rows?

    In process: a stream of inserts, replaced and deleted documents, whose topics come one after the
    other. After each of ten rounds it is compared with a new build at the same nlist and nprobe.

    Ends with 1 when recall is below 0.998 of the new build's, codes scanned are over 1.2 of its,
    memory is over its and fresh_bytes, or a search does not find what its mode promises.
    """

    nlist: Annotated[int, Option(min=0, help="Clusters; 0: twice the root of the rows.")] = 0
    retrain: Annotated[
        bool, Option("--retrain", help="New centroids where `corpus save --retrain` is advised.")
    ] = False
