"""The options of the benchmarks of generation. Light to import."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import typer

from bench.core.command import command
from bench.core.options import DataOption, JsonOption, SeedOption


class SpeculationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of speculation."""

    data: DataOption = None
    source: Annotated[
        Literal["hotpotqa", "nq"],
        typer.Option("--source", help="The set of the questions: HotpotQA or Natural Questions."),
    ] = "hotpotqa"
    questions: Annotated[
        int, typer.Option("--questions", min=20, help="Questions that are searched.")
    ] = 1000
    nlist: Annotated[
        list[int], typer.Option("--nlist", min=1, help="Clusters of the index; may be repeated.")
    ] = msgspec.field(default_factory=lambda: [100, 1000])
    passages: Annotated[int, typer.Option("--passages", min=1, help="Passages of a prompt.")] = 3
    seed: SeedOption = 0
    json_file: JsonOption = None


@command
def speculation(options: SpeculationOptions) -> bool:
    """Which passages of a search that still runs are worth computing, and when?

    Searches real questions cluster by cluster, in several orders of the clusters, and tells every
    policy of speculation what each draft would have had. Searches, warm-ups and prompts then take
    place on virtual time, with an LLM server that works in steps, for one question at once and for
    eight. An oracle knows which of the passages found are final. The times of the server are set:
    those of a model of 135M parameters in vLLM on two cores.

    Ends with 1 when the policy of Carpool, one question at once, hides less than 0.9 of what the
    oracle hides for searches of a second, or 0.7 for half a second, or computes more than a quarter
    of the tokens in vain; or when `auto` warms anything for searches of 6 ms.

    Example:  carpool bench speculation --data DATA --json speculation.json
    """
    from bench.generation.speculation_command import run

    return run(options)
