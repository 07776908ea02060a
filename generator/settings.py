"""Settings of the generator, and of the LLM server that it asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from carpool.settings import Secret, Settings


class GeneratorSettings(Settings, frozen=True, kw_only=True):
    """What the generator takes in, what it asks for, and how it is written."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "ledger_horizon_ms": "dedup_horizon_ms",
        "ledger_ids_max": "dedup_ids_max",
    }

    concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="requests at the LLM server at once; too low leaves it idle, too high "
            "makes each answer slower",
        ),
    ] = 8
    intake_records_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="queries in hand, waiting or running; too low leaves nothing to order, too "
            "high takes memory and repeats more prompts after a crash of the broker's connection",
        ),
    ] = 64
    intake_bytes_max: Annotated[
        int,
        Meta(
            ge=4 * 1024 * 1024,
            description="bytes of the records in hand; below the largest record the topic stands "
            "still, too high takes memory",
        ),
    ] = 64 * 1024 * 1024
    order: Annotated[
        Literal["arrival"],
        Meta(
            description="which waiting prompt goes next: `arrival` (by priority, then deadline, "
            "then arrival)"
        ),
    ] = "arrival"
    template: Annotated[
        str,
        Meta(
            min_length=1,
            description="the prompt template of queries that name none: a file NAME.txt of "
            "template_dir",
        ),
    ] = "cited"
    template_dir: Annotated[
        str,
        Meta(
            description="folder with prompt templates, all of which a query may name; empty: those "
            "that come with Carpool"
        ),
    ] = ""
    passages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="passages in a prompt, the best first; too low hides the answer, too high "
            "is slow",
        ),
    ] = 3
    passage_chars_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="characters of a passage in a prompt; too low cuts off the answer, too "
            "high costs prefill time",
        ),
    ] = 600
    prompt_chars_max: Annotated[
        int,
        Meta(
            ge=100,
            le=10_000_000,
            description="characters of a prompt; too low drops passages and refuses long "
            "questions, too high overruns the model's context, and the server refuses the query",
        ),
    ] = 10_000
    max_tokens: Annotated[
        int,
        Meta(
            ge=16,
            le=32_768,
            description="tokens of an answer, unless the query says; too low cuts it, too high "
            "lets it ramble",
        ),
    ] = 128
    max_tokens_cap: Annotated[
        int,
        Meta(
            ge=16,
            le=32_768,
            description="most tokens that a query may ask for, cut to this; too high lets one hold "
            "a slot",
        ),
    ] = 2_048
    temperature: Annotated[
        float,
        Meta(
            ge=0,
            le=2,
            description="sampling temperature, unless the query says; 0 repeats itself, higher "
            "varies",
        ),
    ] = 0.0
    citations_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="citations in an answer, the first ones; too low loses some, too high "
            "bloats records",
        ),
    ] = 64
    dedup_horizon_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400_000,
            description="how far back answers are read before the first prompt; too low generates "
            "again what was answered earlier, too high makes starts and rebalances slow",
        ),
    ] = 86_400_000
    dedup_ids_max: Annotated[
        int,
        Meta(
            ge=1_000,
            le=100_000_000,
            description="query ids whose answers are remembered, about 400 bytes each; too low "
            "forgets the oldest, which are"
            " generated again if they are published again, too high takes memory",
        ),
    ] = 1_000_000
    partials: Annotated[
        bool,
        Meta(
            description="send answers as they are written to rag.answers.partial.v1; off saves a "
            "record a token"
        ),
    ] = True

    def check(self) -> list[str]:
        """Returns what is wrong between the values."""
        problems = []
        if self.concurrency > self.intake_records_max:
            problems.append(
                f"concurrency {self.concurrency} is more than intake_records_max "
                f"{self.intake_records_max}: some would never be used; raise intake_records_max"
            )
        if self.max_tokens > self.max_tokens_cap:
            problems.append(
                f"max_tokens {self.max_tokens} is more than max_tokens_cap {self.max_tokens_cap}"
            )
        return problems


class LlmSettings(Settings, frozen=True, kw_only=True):
    """The LLM server: where it is, which of its models to use, how long to wait for it."""

    engine: Annotated[
        Literal["openai", "none"],
        Meta(
            description="`openai`: a server with OpenAI's API, such as vLLM; `none`: no model, "
            "passages only"
        ),
    ] = "openai"
    base_url: Annotated[
        str,
        Meta(
            min_length=1,
            description="URL of the server's API, with its version: http://HOST:PORT/v1",
        ),
    ] = "http://127.0.0.1:8000/v1"
    model: Annotated[
        str,
        Meta(min_length=1, description="name of the model, as GET base_url/models lists it"),
    ] = "smollm2-135m-instruct"
    api_key: Annotated[
        Secret, Meta(description="key of the server, if it wants one; from the environment only")
    ] = Secret()
    sends_priority: Annotated[
        bool,
        Meta(
            description="send each query's priority along; only for a vLLM that was started with "
            "--scheduling-policy priority: others refuse it, or do not know it"
        ),
    ] = False
    connect_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="seconds to connect; too low fails on a slow network, too high finds out "
            "late",
        ),
    ] = 5.0
    first_token_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="seconds from request to first token; too low gives up while the server "
            "still reads a long prompt or"
            " has others to answer first, too high notices a hanging server late",
        ),
    ] = 120.0
    next_token_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="seconds between two tokens; too low gives up on a busy server, too high "
            "notices late",
        ),
    ] = 30.0
    backoff_ms_min: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="first pause after a refusal, doubled with each more; too low hammers the "
            "server",
        ),
    ] = 500
    backoff_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="longest pause between tries; too high comes back late to a server that is "
            "up",
        ),
    ] = 4_000
    retry_after_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            le=86_400_000,
            description="longest pause that the server may ask for (Retry-After); too low hammers "
            "it, too high lets it stop us",
        ),
    ] = 120_000
    failures_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="how often one query may make the server break off, while it answers "
            "others, before it is answered `failed`; too low blames queries for a flaky server, "
            "too high lets one bad query hold up the others",
        ),
    ] = 5

    def check(self) -> list[str]:
        """Returns what is wrong between the values."""
        problems = []
        if self.backoff_ms_min > self.backoff_ms_max:
            problems.append(
                f"backoff_ms_min {self.backoff_ms_min} is more than backoff_ms_max "
                f"{self.backoff_ms_max}"
            )
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            problems.append(
                f"base_url {self.base_url!r} is no URL such as http://127.0.0.1:8000/v1"
            )
        return problems
