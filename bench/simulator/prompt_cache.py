"""vLLM without its model: which tokens of a prompt are cached when its request starts.

Scheduler, prefix cache, host tier and KV events are vLLM's own code; only the model is left out,
and the copies between GPU and host: each step gives every request its next token, and ends every
copy. Needs vLLM, and no GPU.

`replay` sends prompts through the generator's own queue to it; `computed_once` is its oracle.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from carpool.errors import ConfigError
from carpool.vllm import KV_POLICY, KvHostPolicy, VllmSettings, kv_transfer_config
from generator.llm.kv_events import events_of
from generator.plan.cached_prefixes import CachedPrefixes, blocks_of
from generator.plan.kv_tree import KvBatch, KvTree
from generator.plan.queue import Prompt, PromptQueue, QueuedPrompt

PROMPT_TOKENS_MAX = 4096
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": PROMPT_TOKENS_MAX,
}
FIRST_ANSWER = 1 << 60
"""Answers have tokens of no prompt and no other answer."""
HOST_BLOCK_BYTES = 4096
"""Of the model that is left out: less than a page, which is the least that vLLM takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSize:
    """Memory and load of a server: `blocks` of `block_tokens`, `concurrency` requests that run.

    vLLM keeps one of the blocks for itself. `host_blocks`: in the second tier. `output_tokens`: of
    each answer; they take blocks on the GPU while their request runs, and afterwards.
    """

    blocks: int
    host_blocks: int = 0
    host_policy: KvHostPolicy = "lru"
    block_tokens: int = 32
    concurrency: int = 8
    output_tokens: int = 64


class TokenCounts(NamedTuple):
    """Tokens of a prompt, or of all prompts of a run. `on_host`: of the cached ones."""

    cached: int = 0
    computed: int = 0
    on_host: int = 0

    @property
    def cached_share(self) -> float:
        """The share of the prompt tokens that were cached."""
        return self.cached / (self.cached + self.computed)


class PromptCache:
    """One server. Deterministic, except that vLLM stores the blocks of a step in any order."""

    def __init__(self, size: CacheSize) -> None:
        """Raises `ConfigError` where vLLM is not installed."""
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError("vLLM is not installed: make setup-vllm")
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(size.block_tokens, sha256)
        self._sampling = SamplingParams(max_tokens=size.output_tokens, ignore_eos=True)
        self.scheduler = _scheduler(size)
        self.scheduler.kv_event_publisher = self
        self._payloads: list[bytes] = []
        self.added = self.running = 0
        self._size = size

    @property
    def has_slot(self) -> bool:
        """Returns whether another request may begin."""
        return self.running < self._size.concurrency

    def publish(self, batch: Any) -> None:
        """Takes a batch of KV events from the scheduler, as it would be sent."""
        self._payloads.append(msgspec.msgpack.encode(batch))

    def take_batches(self, seq: int) -> list[KvBatch]:
        """Returns what was published since the last call, numbered from `seq` on."""
        payloads, self._payloads = self._payloads, []
        return [KvBatch(seq=seq + at, events=events_of(each)) for at, each in enumerate(payloads)]

    def block_names(self, token_ids: Sequence[int]) -> list[bytes]:
        """Returns the names of the full blocks of a prompt, as vLLM has them."""
        names: list[bytes] = self._request(token_ids).block_hashes
        return names

    def replace_host_policy(self, policy: Any) -> None:
        """Lets another policy say what leaves the host. For a server without requests so far."""
        self.scheduler.connector.scheduler.manager._policy = policy

    def add(self, token_ids: Sequence[int]) -> None:
        """Begins a request."""
        self.scheduler.add_request(self._request(token_ids))
        self.added += 1
        self.running += 1

    def _request(self, token_ids: Sequence[int]) -> Any:
        from vllm.v1.request import Request

        return Request(
            request_id=str(self.added),
            prompt_token_ids=list(token_ids),
            sampling_params=self._sampling,
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def step(self) -> list[TokenCounts]:
        """Does a step; returns the counts of each prompt that it has computed."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        planned = self.scheduler.schedule()
        copies = None
        if (meta := planned.kv_connector_metadata) is not None:
            jobs = meta.load_jobs | meta.store_jobs
            done = common.OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, 1))
            loaded = {job.req_id for job in meta.load_jobs.values()}
            copies = KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=done)
        requests = [self.scheduler.requests[id] for id in planned.num_scheduled_tokens]
        is_computed = [one.num_computed_tokens >= one.num_tokens for one in requests]
        output = ModelRunnerOutput(
            req_ids=[one.request_id for one in requests],
            req_id_to_index={one.request_id: at for at, one in enumerate(requests)},
            sampled_token_ids=[
                [FIRST_ANSWER + int(one.request_id)] * is_there
                for one, is_there in zip(requests, is_computed, strict=True)
            ],
            kv_connector_output=copies,
        )
        found: list[TokenCounts] = []
        for each in self.scheduler.update_from_output(planned, output).values():
            for one in each.outputs:
                self.running -= one.finish_reason is not None
                if (stats := one.prefill_stats) is not None:
                    cached = stats.num_cached_tokens
                    computed = stats.num_prompt_tokens - cached
                    found.append(TokenCounts(cached, computed, stats.num_external_cached_tokens))
        return found


def _scheduler(size: CacheSize) -> Any:
    """Returns vLLM's scheduler for a model that needs nothing but blocks."""
    import torch
    import vllm.config as config
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    logging.getLogger("vllm").setLevel(logging.ERROR)
    if str(KV_POLICY.parent) not in sys.path:
        sys.path.append(str(KV_POLICY.parent))  # as PYTHONPATH does for a server
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        model = config.ModelConfig(model=folder, skip_tokenizer_init=True)
    host_bytes = size.host_blocks * HOST_BLOCK_BYTES
    host = VllmSettings(kv_host_bytes=host_bytes, kv_host_policy=size.host_policy)
    cache = config.CacheConfig(block_size=size.block_tokens, enable_prefix_caching=True)
    cache.num_gpu_blocks = size.blocks
    settings = config.VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=config.SchedulerConfig(
            max_num_seqs=size.concurrency,
            max_num_batched_tokens=PROMPT_TOKENS_MAX,
            max_model_len=PROMPT_TOKENS_MAX,
            is_encoder_decoder=False,
        ),
        device_config=config.DeviceConfig("cpu"),
        kv_transfer_config=config.KVTransferConfig(**kv_transfer_config(host))
        if host_bytes
        else None,
        kv_events_config=config.KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    layer = FullAttentionSpec(
        block_size=size.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    blocks = KVCacheConfig(
        num_blocks=size.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
    )
    return Scheduler(settings, blocks, StructuredOutputManager(settings), size.block_tokens)


def replay(
    prompts: Sequence[Sequence[int]],
    server: PromptCache,
    order: type[CachedPrefixes],
    *,
    backlog: int,
) -> TokenCounts:
    """Sends prompts, token ids each, as the generator would, from a backlog of so many."""
    tree = KvTree()
    queue = PromptQueue(order(tree))
    arriving, waiting, seq = enumerate(prompts), 0, 0
    found: list[TokenCounts] = []
    while True:
        for id, prompt in itertools.islice(arriving, backlog - waiting):
            queue.add(QueuedPrompt(Prompt(id=id, arrival_us=id, token_ids=prompt)))
            waiting += 1
        while waiting and server.has_slot:
            queued = queue.take_next(now_us=0)
            assert queued is not None
            server.add(prompts[queued.prompt.id])
            waiting -= 1
        if not server.running:
            return TokenCounts(*map(sum, zip(*found, strict=True)))
        found += server.step()
        for batch in server.take_batches(seq):
            queue.cache_changed(tree.step(batch))
            seq += 1


def computed_once(prompts: Sequence[Sequence[int]], block_tokens: int) -> TokenCounts:
    """Returns what no order surpasses.

    No block is computed twice: all prompts are known in advance, and memory has no bound. What
    follows the last full block is computed for each prompt, also for an equal one.
    """
    blocks = [blocks_of(prompt, block_tokens) for prompt in prompts]
    digests = {digest for each in blocks for digest in each.digests}
    rest = sum(each.tokens - block_tokens * len(each.digests) for each in blocks)
    computed = block_tokens * len(digests) + rest
    return TokenCounts(cached=sum(map(len, prompts)) - computed, computed=computed)
