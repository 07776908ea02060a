"""`carpool bench gateway agents`: agents search by MCP, at several scales of their think times."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import aiohttp
import msgspec
import numpy as np

from bench.core.cpu import CpuMeter
from bench.core.run import ServicesRun
from bench.core.session import Session, open_session
from bench.core.spread import spread
from bench.core.stack import SERVICES
from bench.data.grown import nearest_passages
from bench.gateway.options import AgentsOptions
from bench.gateway.sessions import SOURCE, steps
from bench.gateway.start import GatewayAddress, post
from bench.live.corpus import LiveSet, live_set
from bench.live.load import SETTINGS
from bench.live.options import LiveOptions
from carpool.errors import CarpoolError
from schemas.codec import decode
from schemas.group import Group
from schemas.record import ClusterId
from schemas.topics import GROUPS

RELATED, ALONE_SCALE = 31, 0.01
"""Questions near a question, which its session asks after it. The one session alone asks one each
third of a second, and never two at a time."""
OURS, LOAD, CPU_MS = (*SERVICES, "gateway"), "agents", "CPU ms a search, ours"
PURPOSES = ("codes", "demand", "passages")
SEARCHER = {"CARPOOL_SEARCHER_FRESH_BYTES": "0"}
LEFT_OUT = "an LLM; the CPU of agents; several brokers, searchers and gateways"
Row: TypeAlias = dict[str, Any]
Window: TypeAlias = list[tuple[ClusterId, ...]]
"""The clusters of each search."""


def run(options: AgentsOptions) -> bool:
    run = ServicesRun("gateway-agents", options)
    of_live = {name: getattr(options, name) for name in ("data", "work", "rows", "seed")}
    live, address = live_set(LiveOptions(**of_live), options.nlist), GatewayAddress()
    budget = {"CARPOOL_SEARCHER_BUDGET_BYTES": str(options.budget_mb << 20)}
    settings = {**SETTINGS, **SEARCHER, **budget, **address.settings, **run.settings}
    given: dict[str, Any] = {"services": OURS, "brokers": 1, "topics": (GROUPS.name,)}
    found = dict[str, Row]()
    with open_session(live.index.dir, run.folder, settings, **given) as session:
        agents = Agents(session, address, live)
        scales = [(options.sessions, scale) for scale in options.scale]
        agents.measure(*scales[-1], options.warm_up_s)
        for sessions, scale in ((1, ALONE_SCALE), *scales):
            row = agents.measure(sessions, scale, options.seconds)
            name = f"{sessions:,}, think times x {scale:g}"
            found[name] = row | {"of one session": row[CPU_MS] / [*found.values(), row][0][CPU_MS]}
            run.note(f"{name}: {row['a second']:.1f} searches a second")
    halved = next((name for name, row in found.items() if row["of one session"] <= 0.5), None)
    run.note(f"the CPU of a search has halved at: {halved}; load {SOURCE}")
    promises = {"each search has passages": not any(row["failed"] for row in found.values())}
    facts = {"index": live.index.facts, "halved_at": halved, "left_out": LEFT_OUT, "load": SOURCE}
    return run.finish({"agents": found}, promises=promises, results=found, **facts)


class Agents:
    """Sessions of agents, each a task of one event loop, and what they cost."""

    def __init__(self, session: Session, address: GatewayAddress, live: LiveSet) -> None:
        self._session, self._address = session, address
        self._texts = [one.text or "" for one in live.questions]
        vectors = np.stack([np.frombuffer(one.vector or b"", "<f4") for one in live.questions])
        near, own = nearest_passages(vectors, RELATED), np.arange(len(vectors))
        self._related = np.concatenate([own[:, None], near], axis=1)
        self._pids = {name: [one.pid] for name, one in session.stack.processes.items()}
        self._pids |= {"broker": [one.pid for one in session.brokers], LOAD: [os.getpid()]}

    def measure(self, sessions: int, scale: float, seconds: float) -> Row:
        """Returns what these sessions find and cost. Blocks, seconds longer for idle CPU."""
        meter, calls, read = CpuMeter(self._pids), list[tuple[float, bool]](), self._kb_read()
        began_us = time.time_ns() // 1_000
        meter.start()
        asyncio.run(self._search(sessions, scale, seconds, calls))
        meter.stop()  # by its end, groups have come
        count, windows = max(1, len(calls)), self._windows(began_us)
        cpu_ms = {name: 1_000 * used_s / count for name, used_s in meter.work_s.items()}
        used_s = {name: meter.work_s[name] + meter.idle_s[name] for name in meter.work_s}
        return {
            "searches": len(calls),
            "failed": sum(not is_ok for _, is_ok in calls),
            "a second": len(calls) / meter.seconds,
            "ms of a call": spread(ms for ms, _ in calls),
            "searches a window": count / max(1, len(windows)),
            "window": spread(map(len, windows)),
            "riders a cluster": riders_a_cluster(windows),
            CPU_MS: sum(cpu_ms[name] for name in OURS),
            "CPU ms a search": cpu_ms,
            "KB read a search": {
                name: (kb - read[name]) / count for name, kb in self._kb_read().items()
            },
            "cores of the agents": used_s[LOAD] / meter.seconds,
            "cores": sum(used_s.values()) / meter.seconds,
        }

    async def _search(
        self, sessions: int, scale: float, seconds: float, calls: list[tuple[float, bool]]
    ) -> None:
        ending = asyncio.Event()

        async def agent(number: int) -> None:
            for wait_s, question in steps(random.Random(number), self._related, scale):
                try:
                    await asyncio.wait_for(ending.wait(), wait_s)
                    return
                except TimeoutError:
                    began_s = time.monotonic()
                is_ok = await has_passages(http, self._texts[question])
                calls.append((1_000 * (time.monotonic() - began_s), is_ok))

        async with self._address.client() as http:
            agents = asyncio.gather(*map(agent, range(sessions)))
            await asyncio.sleep(seconds)
            ending.set()
            await agents

    def _kb_read(self) -> dict[str, float]:
        metric, name = self._session.stack["searcher"].metric, "carpool_bytes_read_total"
        return {purpose: metric(name, purpose=purpose) / 1e3 for purpose in PURPOSES}

    def _windows(self, began_us: int) -> list[Window]:
        found: dict[int, Window] = {}
        for record in self._session.recorder.records(GROUPS.name):
            if record.received_us >= began_us:
                group = decode(Group, record.value, record.headers)
                window = found.setdefault(group.window_id, [])
                window += [one.all_clusters for one in group.queries]
        return [*found.values()]


async def has_passages(http: aiohttp.ClientSession, text: str) -> bool:
    """Calls the tool `search`, and returns whether it found passages."""
    call = {"name": "search", "arguments": {"query": text}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    try:
        found = (await post(http, "/mcp", body))["result"]["content"][0]["text"]
        return bool(msgspec.json.decode(found)["results"])
    except (CarpoolError, aiohttp.ClientError, TimeoutError, LookupError, msgspec.DecodeError):
        return False


def riders_a_cluster(windows: Sequence[Window]) -> float:
    """Returns how many searches of a window probe a cluster, of those that one probes."""
    probes = sum(len(clusters) for window in windows for clusters in window)
    return probes / max(1, sum(len({*chain.from_iterable(window)}) for window in windows))
