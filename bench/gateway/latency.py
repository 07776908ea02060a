"""`carpool bench gateway latency`: the same questions by `Client` and through the gateway, in turn.

The services are a stand-in that answers at once: its time and Kafka's are in every row, so the
difference of two rows is the gateway's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec
import psutil

from bench.core.cpu import CpuMeter
from bench.core.kafka import kafka_settings
from bench.core.run import ServicesRun
from bench.core.session import open_session
from bench.core.spread import spread
from bench.core.stack import ServiceProcess, clean_environment
from bench.gateway.options import LatencyOptions
from bench.gateway.responder import HOLD, pieces
from bench.gateway.start import GatewayAddress, lines, post
from carpool.errors import CarpoolError
from producers import Client
from schemas.answer import PartialAnswer

RESPONSES, CHAT, CLIENT, STREAM = "/v1/responses", "/v1/chat/completions", "Client", ", stream"
SETTLE_S, SAMPLE_S = 5.0, 0.25
LEFT_OUT = "the services: a stand-in answers at once; TLS"
Way = Callable[[str], AsyncIterator[str]]
"""Asks, and yields the pieces of the answer."""
Row = dict[str, Any]


def run(options: LatencyOptions) -> bool:
    run = ServicesRun("gateway-latency", options)
    address = GatewayAddress()
    given: dict[str, Any] = {"services": ("gateway",), "brokers": 1, "topics": ()}
    settings = {**address.settings, **run.settings}
    with open_session(Path(), run.folder, settings, **given) as session:
        bootstrap = session.stack.bootstrap
        stand_in = ServiceProcess(
            [sys.executable, "-m", "bench.gateway.responder"],
            environ={**clean_environment(), **settings, "CARPOOL_KAFKA_BOOTSTRAP": bootstrap},
            log_file=run.folder / "responder.log",
        )
        with stand_in:
            pids = {"gateway": [session.stack["gateway"].pid], "stand-in": [stand_in.pid]}
            pids |= {"broker": [one.pid for one in session.brokers], "load": [os.getpid()]}
            client = Client(kafka=kafka_settings(run.settings, bootstrap=bootstrap))
            found, streams = asyncio.run(measure(client, address, pids, options))
    whole = f"each of {options.streams:,} open streams has its whole text"
    are_whole = streams["whole"] == streams["open together"] == options.streams
    tables, results = {**found, "open streams": {"": streams}}, {**found, "open streams": streams}
    return run.finish(tables, promises={whole: are_whole}, results=results, left_out=LEFT_OUT)


async def measure(
    client: Client, address: GatewayAddress, pids: Mapping[str, list[int]], options: LatencyOptions
) -> tuple[dict[str, Row], Row]:
    """Returns what all ways took, by the number of requests at a time; and open streams."""
    found: dict[str, Row] = {}
    async with client, address.client() as http:
        ways = ways_of(client, http)
        for way in ways.values():
            await turn(way, options.at_once, options.warm_up_s / len(ways))
        for at_once in dict.fromkeys((1, options.at_once)):
            meters = {name: CpuMeter(pids) for name in ways}
            ms: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for name in (*ways, *reversed(ways)):
                meters[name].start()
                ms[name] += await turn(ways[name], at_once, options.seconds / 2)
                meters[name].stop()  # blocks, while idle CPU is measured
            p50 = {name: median(total for _, total in ms[name]) for name in ways}
            found[f"{at_once} at a time"] = {
                name: {
                    "a second": len(ms[name]) / meter.seconds,
                    "ms to the first piece": spread(first for first, _ in ms[name]),
                    "ms": spread(total for _, total in ms[name]),
                    "p50 over Client": p50[name] - p50[CLIENT + STREAM * name.endswith(STREAM)],
                    "CPU ms": {each: 1e3 * s / len(ms[name]) for each, s in meter.work_s.items()},
                }
                for name, meter in meters.items()
            }
        gateway = psutil.Process(pids["gateway"][0])
        return found, await open_streams(ways[RESPONSES + STREAM], gateway, options.streams)


def ways_of(client: Client, http: aiohttp.ClientSession) -> dict[str, Way]:
    """Returns the ways to ask, with the two baselines."""

    async def of_client(text: str) -> AsyncIterator[str]:
        yield (await client.ask(text)).answer or ""

    async def stream_of_client(text: str) -> AsyncIterator[str]:
        told = ""
        async for event in client.ask_stream(text):
            if isinstance(event, PartialAnswer):  # the last ones may be missing
                told += event.text
                yield event.text
            else:
                yield (event.answer or "").removeprefix(told)

    async def of_responses(text: str) -> AsyncIterator[str]:
        reply = await post(http, RESPONSES, {"model": "carpool", "input": text})
        yield reply["output"][-1]["content"][0]["text"]

    async def of_chat(text: str) -> AsyncIterator[str]:
        messages = [{"role": "user", "content": text}]
        reply = await post(http, CHAT, {"model": "carpool", "messages": messages})
        yield reply["choices"][0]["message"]["content"]

    async def stream_of_responses(text: str) -> AsyncIterator[str]:
        body = {"model": "carpool", "input": text, "stream": True}
        async for line in lines(http, RESPONSES, body):
            event = msgspec.json.decode(line[6:]) if line.startswith(b"data: ") else {}
            if event.get("type") == "response.output_text.delta":
                yield event["delta"]

    streams = {CLIENT + STREAM: stream_of_client, RESPONSES + STREAM: stream_of_responses}
    return {CLIENT: of_client, RESPONSES: of_responses, CHAT: of_chat, **streams}


async def asked(way: Way, text: str) -> tuple[float, float]:
    """Returns when the first piece came, and the last. Raises `CarpoolError` if one is missing."""
    first_s, told = 0.0, ""
    async for piece in way(text):
        first_s, told = first_s or time.monotonic(), told + piece
    if told != "".join(pieces(text)):
        raise CarpoolError(f"{text!r} was answered with {told!r}: that is not its whole text")
    return first_s, time.monotonic()


async def turn(way: Way, at_once: int, seconds: float) -> list[tuple[float, float]]:
    """Returns the ms of each request to its first piece, and to its last one."""
    until_s, ms = time.monotonic() + seconds, list[tuple[float, float]]()

    async def ask() -> None:
        while (began_s := time.monotonic()) < until_s:
            first_s, last_s = await asked(way, f"question {len(ms)}")
            ms.append((1_000 * (first_s - began_s), 1_000 * (last_s - began_s)))

    await asyncio.gather(*(ask() for _ in range(at_once)))
    return ms


async def open_streams(way: Way, gateway: psutil.Process, count: int) -> Row:
    """Opens `count` streams at once, and reads each to its end; returns what the gateway took."""
    before, began_s = gateway.memory_info().rss, time.monotonic()
    during, streams = (
        before,
        asyncio.gather(
            *(asked(way, f"{HOLD} {number}") for number in range(count)), return_exceptions=True
        ),
    )
    while not streams.done():
        await asyncio.sleep(SAMPLE_S)
        during = max(during, gateway.memory_info().rss)
    whole = [each for each in await streams if not isinstance(each, BaseException)]
    await asyncio.sleep(SETTLE_S)
    first_end_s = min((last_s for _, last_s in whole), default=0.0)
    return {
        "whole": len(whole),
        "open together": sum(first_s < first_end_s for first_s, _ in whole),
        "ms to the first piece": spread(1_000 * (first_s - began_s) for first_s, _ in whole),
        "RSS MB before": before / 1e6,
        "RSS MB during": during / 1e6,
        "RSS MB after": gateway.memory_info().rss / 1e6,
        "KB a stream": (during - before) / 1e3 / count,
    }
