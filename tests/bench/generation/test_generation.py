"""Rows and promises of `carpool bench generation`, with stand-ins for the tokenizer and vLLM."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
import typer
from rich.console import Console

from bench.core.progress import silent
from bench.generation.block_simulator import BlockSimulator, CacheSize
from bench.generation.cli import PARTS, GenerationOptions
from bench.generation.generation import GenerationResult, promises_of
from bench.generation.generation_tables import print_generation
from bench.generation.killed_server import KilledServer, Sent, ServerPart, part_of
from bench.generation.llm_server import LlmAddress
from bench.generation.order_rows import CASES, PROMISED_CASES, OrderBench, OrderRow
from bench.generation.real_rows import (
    REAL_CASES,
    REAL_REPLICAS,
    RealRow,
    cache_size,
    real_replicas_row,
    real_rows,
)
from bench.generation.replica_rows import ReplicaRow
from bench.generation.simulation import Renderer
from bench.generation.streams import Ask
from bench.generation.tier_rows import HOST_TIMES, tier_rows, tree_prompts
from bench.generation.tree_policies import TREE_POLICY_NAMES
from carpool.errors import CarpoolError

BLOCK, BLOCKS = 4, 12


class StandInPrompts:
    """A prompt is a block for the head, one for each passage, and two tokens."""

    def render(self, question: str, passages: Sequence[int]) -> tuple[int, ...]:
        body = [passage for passage in passages for _ in range(BLOCK)]
        return (*[0] * BLOCK, *body, 1_000 + int(question), 2_000)

    def passage_tokens(self, row: int) -> int:
        return BLOCK


def ask(question: int, *passages: int) -> Ask:
    scores = tuple(1.0 - 0.01 * place for place in range(len(passages)))
    return Ask(question=str(question), passages=passages, scores=scores)


ASKS = [ask(0, 1, 2), ask(1, 3, 4), ask(2, 2, 1), ask(3, 5, 6), ask(4, 3, 2), ask(0, 1, 2)]
SIZE = CacheSize(blocks=BLOCKS - 1, block_tokens=BLOCK, concurrency=1, output_tokens=4)


def renderer() -> Renderer:
    return Renderer(StandInPrompts(), block_tokens=BLOCK)  # type: ignore[arg-type]


class StandInVllm(BaseHTTPRequestHandler):
    """Counts cached tokens as the simulator does, for each cache salt anew."""

    servers: dict[str, BlockSimulator]
    reports = True

    def do_GET(self) -> None:
        config = f'block_size="{BLOCK}",num_gpu_blocks="{BLOCKS}"' if self.reports else ""
        self._reply(f"vllm:cache_config_info{{{config}}} 1.0\n".encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["ignore_eos"] and body["temperature"] == 0
        server = self.servers.setdefault(body["cache_salt"], BlockSimulator(SIZE))
        cached = server.start(body["prompt"]).cached
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": body["max_tokens"],
            "total_tokens": len(body["prompt"]) + body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": cached} if self.reports else None,
        }
        choice = {"index": 0, "text": "a", "finish_reason": "length", "logprobs": None}
        reply = {
            "id": "a",
            "object": "text_completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        self._reply(json.dumps(reply).encode())

    def _reply(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Is quiet."""


@contextmanager
def stand_in() -> Iterator[tuple[LlmAddress, type[StandInVllm]]]:
    handler = type("Handler", (StandInVllm,), {"servers": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        yield LlmAddress(url=url, model="m", is_own=False), handler
        server.shutdown()
        thread.join()


@pytest.fixture
def vllm() -> Iterator[tuple[LlmAddress, type[StandInVllm]]]:
    with stand_in() as started:
        yield started


def test_the_reported_counts_stand_beside_the_simulated_ones(
    vllm: tuple[LlmAddress, type[StandInVllm]],
) -> None:
    address, handler = vllm
    size = cache_size(address, concurrency=1)
    assert size == SIZE
    rows = real_rows({"zipf": ASKS}, address, size, renderer(), silent)
    assert [row.order for row in rows] == [case.order for case in REAL_CASES]
    assert all(row.off == 0 and row.equal_prompts == row.prompts == 6 for row in rows)
    assert rows[1].reported_share > rows[0].reported_share
    assert len(handler.servers) == 2, "each run has a salt of its own"


def test_each_of_two_servers_gets_the_prompts_that_it_is_simulated_with(
    vllm: tuple[LlmAddress, type[StandInVllm]],
) -> None:
    with stand_in() as (second, _):
        row = real_replicas_row("zipf", ASKS, [vllm[0], second], SIZE, renderer(), silent)
    assert (row.servers, row.order, row.backlog) == (2, REAL_REPLICAS.order, REAL_REPLICAS.backlog)
    assert row.off == 0
    assert row.equal_prompts == row.prompts == 6
    assert row.reported_share > 0


def test_a_server_that_reports_nothing_is_named(
    vllm: tuple[LlmAddress, type[StandInVllm]],
) -> None:
    address, handler = vllm
    handler.reports = False
    with pytest.raises(CarpoolError, match="names no blocks"):
        cache_size(address, concurrency=1)
    with pytest.raises(CarpoolError, match="enable-prompt-tokens-details"):
        real_rows({"zipf": ASKS}, address, SIZE, renderer(), silent)


def order_rows() -> list[OrderRow]:
    bench = OrderBench("zipf", ASKS, SIZE, renderer(), template="cited_json")
    return [*bench.rows(CASES), *bench.compared(), *bench.rows(PROMISED_CASES)]


def test_there_is_a_row_for_each_order_and_none_surpasses_the_oracle_of_its_passages() -> None:
    rows = order_rows()
    assert len(rows) == len(CASES) + 7 + len(PROMISED_CASES)
    fixed = [row for row in rows if row.score_loss_max is None]
    best = max(row.hit_share for row in fixed if row.order == "oracle")
    assert all(row.hit_share <= best for row in fixed)


def test_one_generation_for_equal_prompts_computes_less_for_each_answer() -> None:
    by_reuse = {row.reuse: row for row in order_rows() if row.order == "cached_prefix"}
    # Of six prompts two are equal: the second one costs its last two tokens, or nothing.
    saved = by_reuse[False].computed_per_answer - by_reuse[True].computed_per_answer
    assert saved == pytest.approx(2 / 6)


def test_the_tree_sees_head_passages_and_the_rest_of_each_prompt() -> None:
    prompts = tree_prompts(ASKS, StandInPrompts(), renderer())  # type: ignore[arg-type]
    assert prompts.head_tokens == BLOCK
    assert [each.tokens for each in prompts.paths[0]] == [BLOCK, BLOCK]
    assert prompts.question_tokens == (2,) * 6


def test_there_is_a_row_for_each_policy_and_size_of_the_host() -> None:
    prompts = tree_prompts(ASKS, StandInPrompts(), renderer())  # type: ignore[arg-type]
    rows = list(tier_rows("zipf", prompts, 4 * BLOCK))
    assert len(rows) == len(HOST_TIMES) * len(TREE_POLICY_NAMES)
    assert all(row.host_share == row.swapped_out_share == 0 for row in rows[:5])
    assert any(row.host_share > 0 for row in rows[5:])


REAL = RealRow(
    stream="zipf",
    servers=1,
    order="arrival",
    backlog=1,
    prompts=9,
    equal_prompts=8,
    simulated_share=0.5,
    reported_share=0.496,
)
REPLICA = ReplicaRow(
    stream="zipf",
    order="cached_prefix",
    backlog=9,
    is_killed=False,
    hit_share=0.6,
    requests_of_mean=1.01,
    computed_of_mean=1.2,
    resent=0,
    unanswered=0,
    miscredited_blocks=0,
)
KILLED = KilledServer(
    backlog=9,
    prompts=9,
    statuses={"ok": 8, "partial": 1},
    answered_twice=0,
    killed_after=3,
    lost_requests=2,
    blocks_at_kill=5,
    emptied_after_ms=10,
    blocks_while_down=0,
    ready_after_s=None,
    credited_in_vain=0,
    parts=(
        ServerPart(
            server="other", prompts=9, simulated_share=0.5, reported_share=0.495, equal_prompts=8
        ),
    ),
)
ORDER = OrderRow(
    stream="zipf",
    template="cited_json",
    order="cached_prefix",
    backlog=1024,
    hit_share=0.6,
    computed_per_answer=9.0,
)


def test_prompts_that_a_server_had_before_are_simulated_and_not_counted() -> None:
    ids = renderer().token_ids(ASKS[0], (0, 1))
    cached = len(ids) // BLOCK * BLOCK
    sent = [Sent(0.0, ids, 0), Sent(1.0, ids, cached), Sent(2.0, ids), Sent(3.0, ids, 0)]
    part = part_of("other", sent, 1.0, SIZE)
    assert (part.prompts, part.equal_prompts) == (2, 1)
    assert part.simulated_share == 2 * part.reported_share == cached / len(ids)
    assert part_of("other", sent, 4.0, SIZE).prompts == 0


def held_after_kill(**changed: object) -> list[bool]:
    killed = msgspec.structs.replace(KILLED, **changed)
    return list(promises_of(GenerationResult(killed=killed)).values())


def test_a_kill_that_loses_a_prompt_or_credits_lost_blocks_breaks_its_promise() -> None:
    assert held_after_kill() == [True, True]
    assert held_after_kill(statuses={"ok": 8}) == [False, True]
    assert held_after_kill(statuses={"ok": 8, "failed": 1}) == [False, True]
    assert held_after_kill(statuses={"ok": 10}, answered_twice=1) == [False, True]
    assert held_after_kill(blocks_while_down=1) == [False, True]
    assert held_after_kill(credited_in_vain=1) == [False, True]
    part = msgspec.structs.replace(KILLED.parts[0], reported_share=0.48)
    assert held_after_kill(parts=(part,)) == [True, False]


def held(**rows: Sequence[object]) -> list[bool]:
    given = {name: tuple(each) for name, each in rows.items()}
    return list(promises_of(GenerationResult(**given)).values())  # type: ignore[arg-type]


def test_each_promise_is_broken_by_the_row_that_is_promised() -> None:
    changed = msgspec.structs.replace
    assert held() == []
    assert held(orders=[ORDER]) == [True]
    assert held(orders=[changed(ORDER, hit_share=0.59)]) == [False]
    assert held(orders=[changed(ORDER, overtaken_max=9)]) == []
    assert held(orders=[changed(ORDER, template="cited", hit_share=0.1)]) == []
    assert held(orders=[changed(ORDER, order="cache_aware", hit_share=0.1)]) == []
    assert held(replicas=[REPLICA]) == [True, True]
    assert held(replicas=[changed(REPLICA, hit_share=0.5)]) == [False, True]
    assert held(replicas=[changed(REPLICA, requests_of_mean=1.06)]) == [False, True]
    assert held(replicas=[changed(REPLICA, miscredited_blocks=1)]) == [True, False]
    assert held(replicas=[changed(REPLICA, unanswered=1)]) == [True, False]
    assert held(real=[REAL]) == [True]
    assert held(real=[REAL, changed(REAL, reported_share=0.506)]) == [False]
    assert held(real=[REAL, changed(REAL, servers=2, reported_share=0.509)]) == [True, True]
    assert held(real=[changed(REAL, servers=2, reported_share=0.511)]) == [False]


def test_the_tables_show_shares_side_by_side() -> None:
    console = Console(width=200, record=True, quiet=False)
    prompts = tree_prompts(ASKS, StandInPrompts(), renderer())  # type: ignore[arg-type]
    result = GenerationResult(
        orders=(ORDER,),
        tiers=tuple(tier_rows("zipf", prompts, 4 * BLOCK)),
        replicas=(REPLICA,),
        real=(REAL,),
        killed=KILLED,
    )
    print_generation(console, result)
    shown = console.export_text()
    for text in ("60.0%; 9", "pgdsf", "1.01", "+0.0040", "0.4950"):
        assert text in shown


def test_names_that_there_are_not_are_refused() -> None:
    GenerationOptions(parts=",".join(PARTS))
    with pytest.raises(typer.BadParameter, match="reel is none of"):
        GenerationOptions(parts="orders,reel")
    with pytest.raises(typer.BadParameter, match="none of natural, zipf, ragpulse"):
        GenerationOptions(streams="")
