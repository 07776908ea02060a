"""The options of the benchmarks of services and answers. A docstring is its command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Option

from bench.core.options import DataOption, SeedOption, ServiceOptions

SecondsOption = Annotated[float, Option(min=0.1, help="How long each side is measured.")]
WarmUpOption = Annotated[
    float, Option("--warm-up", min=0, help="Seconds of load before: Java compiles.")
]


class CorpusOptions(ServiceOptions, frozen=True, kw_only=True):
    """Options of benchmarks on the evaluation data."""

    data: DataOption = None
    nlist: Annotated[int, Option(min=1, help="Clusters of the index.")] = 100
    model: Annotated[
        str | None, Option(help="Embedding model of the precomputed vectors; else the services'.")
    ] = None
    seed: SeedOption = 0


class ClaimsOptions(CorpusOptions, frozen=True, kw_only=True):
    """Do the services find what an exact search finds, and is it evidence?

    Publishes FEVER's claims and compares each retrieval with FAISS IVF-Flat in memory, and how
    often an evidence page is among the first five with an exact search.

    Ends with 1 when a claim is lost, retrieved twice or has other ids, or evidence is found over
    one point less often.
    """


class OverheadOptions(ServiceOptions, frozen=True, kw_only=True):
    """What does the way of a question through the services cost: CPU by process, and time?

    Sends different questions with vectors through the services on Apache Kafka, one broker or
    three: without an LLM, and with a stand-in for an LLM server that answers at once, by prompts of
    several sizes. The baseline on the same brokers are bare hops: three processes in a chain that
    only copy records. What processes take idle, Java's compilers, the stand-in, and the load are
    shown apart.

    Ends with 1 when a percentile of 200 questions a second without an LLM is over its bound, or a
    question has no answer or two.
    """

    contestant: Annotated[
        list[str],
        Option(metavar="NAME", help="exactly-once-1 or -3, brokers; repeatable. Default: both."),
    ] = msgspec.field(default_factory=list)
    rate_per_s: Annotated[
        list[float], Option("--rate", min=0, help="Questions a second; 0: a backlog. Repeatable.")
    ] = msgspec.field(default_factory=lambda: [20.0, 50.0, 200.0, 0.0])
    passages: Annotated[
        list[int],
        Option(min=0, max=100, help="In a prompt, about 95 token ids each; 0: no LLM. Repeatable."),
    ] = msgspec.field(default_factory=lambda: [0, 3, 15, 41])
    other_revision: Annotated[
        Path | None,
        Option(metavar="DIR", help="A checkout, with its kernel; its services take turns too."),
    ] = None
    seconds: SecondsOption = 30.0
    warm_up_s: WarmUpOption = 90.0


class PrioritiesOptions(ServiceOptions, frozen=True, kw_only=True):
    """Do batch questions, or a tenant that asks a lot, make others wait?

    Interactive questions are asked alone, then with --batch questions of the class batch queued
    before them; the questions of a quiet tenant alone, then with those of a loud tenant.

    Ends with 1 when the interactive p99 is over twice (with --llm-ms: 1.2 times; with --vllm no
    bound), or the quiet tenant's over one and a half times what it is alone, a question has not one
    answer, or the backlog was empty before the end.
    """

    batch: Annotated[int, Option(min=1, help="Batch questions that are queued first.")] = 20_000
    rate_per_s: Annotated[float, Option("--rate", min=0.01, help="Of interactive questions.")] = (
        20.0
    )
    tenant_rate_per_s: Annotated[
        float,
        Option(
            "--tenant-rate", min=0, help="Of both tenants; nine tenths are loud. 0: no tenants."
        ),
    ] = 200.0
    llm_ms: Annotated[
        int, Option("--llm-ms", min=0, help="Of each reply of a stand-in for an LLM; 0: no LLM.")
    ] = 0
    vllm: Annotated[
        bool, Option("--vllm", help="A vLLM that the run starts, on the same cores; 32 tokens.")
    ] = False
    seconds: SecondsOption = 20.0
    warm_up_s: WarmUpOption = 60.0


class AnswersOptions(CorpusOptions, frozen=True, kw_only=True):
    """Are the answers right, what are they cited for, and what do they cost?

    Asks 100 questions whose answers are known, with a vLLM that the run starts. Counts where a gold
    answer is: in the answer, in the answer or its quote; the F1 of the answer's words; what the
    model cites and what Carpool finds, and whether it is the gold passage; noise; and the share of
    output tokens that are not the text. Means come with 95 % intervals. --natural asks questions of
    NQ too, whose answers are not known. --workflow asks them by each of these programs; only for
    one_shot is there a promise of quality; its answers judge the threshold of support.

    Ends with 1 when a question has not one terminal answer, less than 0.75 have gold in answer or
    quote, or more than 15 % of tokens are beyond the text.
    """

    workflow: Annotated[
        list[str], Option(metavar="NAME", help="How questions are asked; repeatable.")
    ] = msgspec.field(default_factory=lambda: ["one_shot"])
    questions: Annotated[int, Option(min=1, max=100, help="Of the 100 that are asked.")] = 100
    natural: Annotated[int, Option(min=0, help="Of NQ's questions that are asked too.")] = 0


class BacklogOptions(CorpusOptions, frozen=True, kw_only=True):
    """What does a backlog cost, and what does a crash, against a script that people write?

    Answers --questions of NQ, and as many by Zipf's law of 60, with one vLLM that the run starts:
    by `carpool batch run` and by a script with sentence-transformers, FAISS and asyncio, which
    resumes from its own output. Then again, and each is killed when half of the lines are answered:
    the script, and Carpool's runner and services.

    Ends with 1 when Carpool loses a line, or has one twice.
    """

    questions: Annotated[int, Option(min=2, help="Of each load.")] = 200
