"""The sections `generator` and `llm`: what the generator takes in, and its LLM server."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from carpool.settings import Secret, Settings
from carpool.terminal import without_password
from generator.plan.concurrency import FOUND_MAX

PROMPTS_A_SLOT = 8
PROMPTS_A_SERVER = 2 * FOUND_MAX
"""With `concurrency` 0."""


class GeneratorSettings(Settings, frozen=True, kw_only=True):
    """Bounds of the intake, the prompts, the answers and their dedup."""

    concurrency: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Requests in flight at each LLM server; with 0 it begins with 8, is one "
            "more while a vLLM lets none wait, and one less while some wait; another server keeps "
            "8. Eight times as many queries are taken in (with 0: 512 a server); too low leaves "
            "the server idle, too high makes each answer "
            "slower",
        ),
    ] = 8
    interactive_slots: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Slots of each LLM server that prompts of the class batch leave free, so "
            "that an interactive prompt is sent at once; 0: none. One prompt of a batch may always "
            "be at a server: with concurrency 1 none is kept. With concurrency 0 they come on top "
            "of what a batch may use. Too low lets a user wait until a prompt of a batch ends; too "
            "high slows batches, also while no user asks: one of 8 costs an eighth, which "
            "concurrency 9 gives back",
        ),
    ] = 1
    template: Annotated[
        str,
        Meta(
            min_length=1,
            description="The prompt template of queries that name none: a file NAME.txt of "
            "template_dir",
        ),
    ] = "cited"
    template_dir: Annotated[
        str,
        Meta(
            description="Folder with prompt templates, all of which a query may name; empty: the "
            "built-in ones"
        ),
    ] = ""
    passages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Passages of a search in a prompt, the best first; too low hides the "
            "answer, too high is slow; `retrieved` of an answer holds all `top_k` and says which "
            "the prompt had. A step of a workflow shows so many of each search, unless it names "
            "`passages_max`",
        ),
    ] = 3
    passage_chars_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Characters of a passage in a prompt; of a longer passage the part that "
            "fits the question is shown; too low cuts off the answer, too high costs prefill time",
        ),
    ] = 600
    prompt_chars_max: Annotated[
        int,
        Meta(
            ge=100,
            le=10_000_000,
            description="Characters of a prompt; too low drops passages and refuses long "
            "questions, too high exceeds the model's context, and the server refuses "
            "the query. A token has three to four. `carpool up` lowers it to the context of the "
            "vLLM that it starts",
        ),
    ] = 10_000
    max_tokens: Annotated[
        int,
        Meta(
            ge=16,
            le=32_768,
            description="Tokens of an answer, unless the query names a number; too low cuts it "
            "off, too high allows long answers",
        ),
    ] = 128
    max_tokens_cap: Annotated[
        int,
        Meta(
            ge=16,
            le=32_768,
            description="Most tokens that a query may ask for; more is reduced to this; too high "
            "lets one query block a request slot",
        ),
    ] = 2_048
    dedup_horizon_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400_000,
            description="Age of the oldest answers that are read before the first prompt; too low "
            "generates earlier answers again, too high makes starts and rebalances "
            "slow",
        ),
    ] = 86_400_000
    reuse: Annotated[
        bool,
        Meta(
            description="Answer a prompt that has an answer already with that answer; off "
            "generates each. Only prompts with temperature 0 or a seed, of one tenant, model, "
            "template and index; a query refuses it by `generation.reuse`"
        ),
    ] = True
    partials: Annotated[
        bool,
        Meta(
            description="Send answers as they are written, and the steps of workflows as they "
            "finish, to rag.answers.partial.v1; off saves a record for each token"
        ),
    ] = True

    def prompts_max(self, servers: int) -> int:
        """Returns how many queries the generator takes in before it has answered one.

        Few prompts leave little to choose from. Many leave no work for a member that starts later.
        """
        return servers * (PROMPTS_A_SLOT * self.concurrency or PROMPTS_A_SERVER)

    def check(self) -> list[str]:
        """Returns the conflicts between values."""
        problems = []
        if self.max_tokens > self.max_tokens_cap:
            problems.append(
                f"max_tokens {self.max_tokens} is more than max_tokens_cap {self.max_tokens_cap}"
            )
        return problems


class LlmSettings(Settings, frozen=True, kw_only=True):
    """The LLM servers: their addresses, their model, and how long to wait for them."""

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
            description="URL of the server's API, with its version: http://HOST:PORT/v1; of "
            "several servers with the same model, all URLs, separated by commas. A password in a "
            "URL (http://NAME:PASSWORD@HOST) is printed as stars; set it by the environment",
        ),
    ] = "http://127.0.0.1:8000/v1"
    model: Annotated[
        str, Meta(min_length=1, description="Name of the model, as GET base_url/models lists it")
    ] = "smollm2-135m-instruct"
    api_key: Annotated[
        Secret, Meta(description="Key of the server, if it needs one; from the environment only")
    ] = Secret()
    sends_priority: Annotated[
        bool,
        Meta(
            description="Send the priority of each query; only for a vLLM with "
            "--scheduling-policy priority: other servers refuse or ignore it"
        ),
    ] = False
    kv_events: Annotated[
        str,
        Meta(
            description="Where a vLLM publishes its KV events (--kv-events-config): "
            "tcp://HOST:PORT, with replays at the next port, or ipc://PATH, with replays at "
            "PATH.replay. For several servers one endpoint each, in the order of base_url, "
            "separated by commas. Empty: prompts are sent in the order of arrival"
        ),
    ] = ""
    extra_headers: Annotated[
        Secret,
        Meta(
            description="More headers of every request, as a JSON object of texts; they often "
            "hold keys, so they come from the environment only"
        ),
    ] = Secret()
    extra_body: Annotated[
        dict[str, Any],
        Meta(
            description="More fields of every request for an answer, such as reasoning_effort; in "
            "the environment a JSON object. It has no place for keys: it is printed with the "
            "settings"
        ),
    ] = msgspec.field(default_factory=dict)
    first_token_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds from request to first token; too low gives up while the server "
            "is busy or reads a long prompt, too high notices a hanging server late",
        ),
    ] = 120.0
    next_token_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds between two tokens; too low gives up on a busy server, too high "
            "notices a hanging server late",
        ),
    ] = 30.0
    tries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Tries of one query; after the last one the query is answered `failed`. "
            "A request is a try if the server begins to reply and completes no answer, or refuses "
            "it and accepts others; not if it is busy (429, 503) or unreachable. Four more are "
            "made after 502 and 504, and more at a server that refuses at random. Too low blames "
            "queries for an unreliable server, too high pays for one bad query again and again",
        ),
    ] = 6
    later_ms_max: Annotated[
        int,
        Meta(
            ge=1_000,
            le=604_800_000,
            description="Milliseconds from the first refusal of a query until it is answered "
            "`failed`, if the server accepts others and refuses this one, though only as busy. Too "
            "low fails queries that wait for a limit of tokens a minute, too high keeps a query "
            "without a deadline that is always refused",
        ),
    ] = 3_600_000

    def check(self) -> list[str]:
        """Returns the conflicts between values."""
        problems = []
        urls = self.base_urls()
        for text in urls:
            url = urlsplit(text)
            if url.scheme not in ("http", "https") or not url.hostname:
                problems.append(
                    f"base_url {without_password(text)!r} is no URL such as "
                    "http://127.0.0.1:8000/v1"
                )
        if len(set(urls)) < len(urls):
            problems.append("base_url names a server twice")
        endpoints, servers = len(self.kv_endpoints()), len(urls)
        if endpoints not in (0, servers):
            problems.append(
                f"kv_events has {endpoints} endpoints for {servers} servers of base_url; name one "
                "for each, or none"
            )
        problems += [
            f"kv_events {endpoint!r} is no endpoint such as tcp://127.0.0.1:5557 or ipc:///run/kv"
            for endpoint in self.kv_endpoints()
            if not _is_endpoint(endpoint)
        ]
        try:
            self.headers()
        except msgspec.DecodeError:
            problems.append('extra_headers is no JSON object of texts: write {"NAME": "VALUE"}')
        return problems

    def base_urls(self) -> tuple[str, ...]:
        """Returns the URLs of the servers."""
        return tuple(part.strip() for part in self.base_url.split(","))

    def kv_endpoints(self) -> tuple[str, ...]:
        """Returns where the servers publish their KV events, in the order of the servers."""
        return tuple(part.strip() for part in self.kv_events.split(",")) if self.kv_events else ()

    def headers(self) -> dict[str, str]:
        """Returns the `extra_headers` by name."""
        return msgspec.json.decode(self.extra_headers.value or "{}", type=dict[str, str])


def _is_endpoint(text: str) -> bool:
    scheme, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    # A replay is asked for at the next port.
    is_tcp = scheme == "tcp" and bool(host) and port.isdecimal() and 0 < int(port) < 65_535
    return is_tcp or (scheme == "ipc" and bool(address))
