"""The simulated cache beside a real vLLM's: the same prompts in the same order, and both counts.

The order, and with several servers the server of each prompt, is chosen as in the simulation,
before the first prompt is sent. Prompts are token ids.
Runs of one server differ in their cache salt, so that none finds the blocks of another one; these
are the first to be evicted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from openai import AsyncOpenAI, OpenAIError

from bench.core.progress import Tell
from bench.generation.block_simulator import CacheSize
from bench.generation.llm_server import LlmAddress
from bench.generation.order_rows import SCORE_LOSS_MAX
from bench.generation.replicas import ReplicasCase, send_to_replicas
from bench.generation.simulation import (
    OrderCase,
    Renderer,
    SentPrompt,
    send_in_order,
    share_of,
)
from bench.generation.streams import Ask, StreamName
from carpool.errors import CarpoolError

OUTPUT_TOKENS = 4
SEND_GAP_S = 0.01
"""Between two requests, so that the server starts them in the order in which they are sent."""
OFF_MAX = 0.005
REPLICAS_OFF_MAX = 0.01
"""How far apart the two shares may be, of one server and of several."""
REAL_CASES = (
    OrderCase(order="arrival", backlog=1),
    OrderCase(order="cached_prefix", backlog=256, score_loss_max=SCORE_LOSS_MAX),
)
REAL_REPLICAS = ReplicasCase(servers=2, order="cached_prefix", backlog=256, overtaken_max=256)


class RealRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the hit share of its prompts as simulated, and as the servers reported.

    `equal_prompts`: those whose cached tokens were the simulated ones.
    """

    stream: StreamName
    servers: int
    order: str
    backlog: int
    prompts: int
    simulated_share: float
    reported_share: float
    equal_prompts: int

    @property
    def off(self) -> float:
        """Simulated minus reported."""
        return self.simulated_share - self.reported_share


def cache_size(address: LlmAddress, *, concurrency: int) -> CacheSize:
    """Returns the memory of a vLLM as it says itself. Raises `CarpoolError` where it does not."""
    infos = (one.labels for one in address.metrics() if one.name == "vllm:cache_config_info")
    labels = next(infos, {})
    try:
        blocks, block_tokens = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError) as error:
        raise CarpoolError(
            f"{address.root}/metrics names no blocks of the KV cache; name a vLLM"
        ) from error
    return CacheSize(
        blocks=blocks - 1,  # vLLM keeps one for itself
        block_tokens=block_tokens,
        concurrency=concurrency,
        output_tokens=OUTPUT_TOKENS,
    )


def real_rows(
    streams: dict[StreamName, Sequence[Ask]],
    address: LlmAddress,
    size: CacheSize,
    renderer: Renderer,
    tell: Tell,
) -> list[RealRow]:
    """Sends each stream in each order of `REAL_CASES`, and returns a row for each. Blocks."""
    rows = []
    for stream, asks in streams.items():
        for case in REAL_CASES:
            sent = list(send_in_order(asks, case, size, renderer))
            step = f"vLLM, {stream}, {case.order}"
            salt = f"{stream}-{case.order}"
            reported = asyncio.run(_send_all(sent, address, size.concurrency, salt, step, tell))
            rows.append(_row(stream, case, sent, reported))
    return rows


def real_replicas_row(
    stream: StreamName,
    asks: Sequence[Ask],
    addresses: Sequence[LlmAddress],
    size: CacheSize,
    renderer: Renderer,
    tell: Tell,
) -> RealRow:
    """Sends each of equal servers its prompts of `REAL_REPLICAS`, all servers at once. Blocks."""
    found = send_to_replicas(asks, REAL_REPLICAS, size, renderer)
    reported = asyncio.run(_send_to_each(found.sent, addresses, size.concurrency, stream, tell))
    sent = [prompt for each in found.sent for prompt in each]
    return _row(stream, REAL_REPLICAS, sent, reported, servers=len(addresses))


def _row(
    stream: StreamName,
    case: OrderCase | ReplicasCase,
    sent: Sequence[SentPrompt],
    reported: Sequence[int],
    servers: int = 1,
) -> RealRow:
    return RealRow(
        stream=stream,
        servers=servers,
        order=case.order or "round robin",
        backlog=case.backlog,
        prompts=len(sent),
        simulated_share=share_of(sent).share,
        reported_share=sum(reported) / sum(len(prompt.token_ids) for prompt in sent),
        equal_prompts=sum(
            prompt.cached_tokens == cached for prompt, cached in zip(sent, reported, strict=True)
        ),
    )


async def _send_to_each(
    sent: Sequence[Sequence[SentPrompt]],
    addresses: Sequence[LlmAddress],
    concurrency: int,
    stream: StreamName,
    tell: Tell,
) -> list[int]:
    """Returns the cached tokens of the prompts, one server after the other."""
    reported = await asyncio.gather(
        *(
            _send_all(each, address, concurrency, "replicas", f"vLLM {number}, {stream}", tell)
            for number, (each, address) in enumerate(zip(sent, addresses, strict=True), start=1)
        )
    )
    return [cached for each in reported for cached in each]


async def _send_all(
    sent: Sequence[SentPrompt],
    address: LlmAddress,
    concurrency: int,
    salt: str,
    step: str,
    tell: Tell,
) -> list[int]:
    """Returns the cached tokens of each prompt as the server reports them."""
    places = asyncio.Semaphore(concurrency)
    answered = 0
    async with AsyncOpenAI(
        base_url=address.url, api_key="none", max_retries=0, timeout=600
    ) as client:

        async def ask(prompt: SentPrompt) -> int:
            nonlocal answered
            try:
                reply = await client.completions.create(
                    model=address.model,
                    prompt=list(prompt.token_ids),
                    max_tokens=OUTPUT_TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True, "cache_salt": salt},
                )
            except OpenAIError as error:
                raise CarpoolError(f"{address.url} does not answer a prompt: {error}") from error
            finally:
                places.release()
            answered += 1
            tell(step, answered, len(sent))
            usage = reply.usage
            if usage is None or usage.prompt_tokens_details is None:
                raise CarpoolError(
                    f"{address.url} does not report cached tokens; start vLLM with "
                    "--enable-prompt-tokens-details"
                )
            return usage.prompt_tokens_details.cached_tokens or 0

        asked = []
        for prompt in sent:
            await places.acquire()
            asked.append(asyncio.create_task(ask(prompt)))
            await asyncio.sleep(SEND_GAP_S)
        return await asyncio.gather(*asked)
