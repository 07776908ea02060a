"""The options of `carpool bench gateway`. A docstring is its command's help."""

from __future__ import annotations

from typing import Annotated

import msgspec
from typer import Option

from bench.core.options import DataOption, SeedOption, ServiceOptions
from bench.services.options import SecondsOption, WarmUpOption


class LatencyOptions(ServiceOptions, frozen=True, kw_only=True):
    """What does the gateway add to a question: time, CPU, and memory of open streams?

    A stand-in for the services answers every question at once, so the gateway itself is measured.
    The same questions are asked by `Client`, which is the baseline, and through the gateway: whole
    and as streams, one at a time and --at-once. Then --streams are open together.

    Ends with 1 when a text is not whole.
    """

    at_once: Annotated[int, Option(min=1, help="Requests at a time, after one at a time.")] = 50
    streams: Annotated[int, Option(min=1, help="Streams that are open together.")] = 1_000
    seconds: SecondsOption = 20.0
    warm_up_s: WarmUpOption = 60.0


class AgentsOptions(ServiceOptions, frozen=True, kw_only=True):
    """Does the CPU of a search fall when many agents search? A curve, without a bound.

    Agents think, call the MCP tool `search`, think, and so on, with the pace and the length of the
    sessions of a published log. Grouper, searcher, generator without an LLM and gateway run on
    Apache Kafka; codes of the index do not fit the searcher's memory. First one session alone, then
    --sessions at each --scale of the think times.

    Ends with 1 when a search has no passages.
    """

    data: DataOption = None
    rows: Annotated[int, Option(min=2_000, help="Passages, grown out of the data.")] = 200_000
    nlist: Annotated[int, Option(min=1, help="Clusters of the index.")] = 1_000
    budget_mb: Annotated[int, Option(min=1, help="The searcher's memory: MiB.")] = 16
    seed: SeedOption = 0
    sessions: Annotated[int, Option(min=1, help="Agents at a time.")] = 1_000
    scale: Annotated[list[float], Option(min=0.001, help="Of the think times; repeatable.")] = (
        msgspec.field(default_factory=lambda: [1.0, 0.5, 0.25, 0.1])
    )
    seconds: SecondsOption = 60.0
    warm_up_s: WarmUpOption = 60.0
