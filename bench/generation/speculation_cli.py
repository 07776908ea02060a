"""The options of `carpool bench speculation`. Light to import."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from bench.core.command import command
from bench.core.options import DataOption, JsonOption, SeedOption


class SpeculationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of speculation."""

    data: DataOption = None
    questions: Annotated[
        int, typer.Option("--questions", min=20, help="Questions that are searched.")
    ] = 1000
    nlist: Annotated[
        list[int], typer.Option("--nlist", min=1, help="Clusters of the index; may be repeated.")
    ] = msgspec.field(default_factory=lambda: [100, 1000])
    passages: Annotated[int, typer.Option("--passages", min=1, help="Passages of a prompt.")] = 3
    answer_tokens: Annotated[
        int, typer.Option("--answer-tokens", min=2, help="Tokens of an answer, on average.")
    ] = 16
    prefill_us: Annotated[
        int, typer.Option("--prefill-us", min=1, help="Microseconds to compute a prompt's token.")
    ] = 1_350
    step_us: Annotated[
        int, typer.Option("--step-us", min=1, help="Microseconds of a step of the LLM server.")
    ] = 64_000
    decode_us: Annotated[
        int, typer.Option("--decode-us", min=0, help="Microseconds of an answer's token in a step.")
    ] = 7_000
    seed: SeedOption = 0
    json_file: JsonOption = None


@command
def speculation(options: SpeculationOptions) -> bool:
    """Which passages of a search that still runs are worth computing, and when?

    Searches real questions cluster by cluster, in several orders of the clusters, and tells every
    policy of speculation what each draft would have had. Searches, warm-ups and prompts then take
    place on virtual time, with an LLM server that works in steps, for one question at once and for
    eight. An oracle knows which of the passages found are final. The times of the server are set;
    the defaults are those of a model of 135M parameters in vLLM on two cores.

    Ends with 1 when the policy of Carpool, one question at once, hides less than 0.9 of what the
    oracle hides for searches of a second, or 0.7 for half a second, or computes more than a quarter
    of the tokens in vain; or when `auto` warms anything for searches of 6 ms.

    Example:  carpool bench speculation --data DATA --json speculation.json
    """
    from bench.generation.pipeline import run

    return run(options)
