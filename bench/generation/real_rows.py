"""The simulated cache beside a real vLLM's: the same prompts in the same order, and both counts.

The order is chosen as in the simulation, before the first prompt is sent. Prompts are token ids.
Runs of one server differ in their cache salt, so that none finds the blocks of another one; these
are the first to be evicted.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Sequence

import msgspec
from openai import AsyncOpenAI, OpenAIError

from bench.core.progress import Tell
from bench.generation.block_simulator import CacheSize
from bench.generation.llm_server import LlmAddress
from bench.generation.order_rows import SCORE_LOSS_MAX
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
"""How far apart the two shares may be."""
REAL_CASES = (
    OrderCase(order="arrival", backlog=1),
    OrderCase(order="cached_prefix", backlog=256, score_loss_max=SCORE_LOSS_MAX),
)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)


class RealRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the hit share of its prompts as simulated, and as the server reported.

    `equal_prompts`: those whose cached tokens were the simulated ones.
    """

    stream: StreamName
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
    with urllib.request.urlopen(f"{address.root}/metrics", timeout=30) as reply:  # noqa: S310
        found = _CACHE_CONFIG.search(reply.read().decode())
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found.group(1))) if found else {}
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
            tokens = sum(len(prompt.token_ids) for prompt in sent)
            rows.append(
                RealRow(
                    stream=stream,
                    order=case.order,
                    backlog=case.backlog,
                    prompts=len(sent),
                    simulated_share=share_of(sent).share,
                    reported_share=sum(reported) / tokens,
                    equal_prompts=sum(
                        prompt.cached_tokens == cached
                        for prompt, cached in zip(sent, reported, strict=True)
                    ),
                )
            )
    return rows


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
