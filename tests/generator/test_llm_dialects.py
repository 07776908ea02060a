"""Replies of nine kinds of LLM servers, as they are and mutated, through the real HTTP client.

The folder `dialects` has a reply of each, written from what their documentation says; the answer in
it is the same.
"""

from __future__ import annotations

import json
import random
import re
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import psutil
import pytest
from structlog.testing import capture_logs

from carpool.settings import Secret
from generator.llm.openai_api import OpenAiLlm
from generator.llm.server_events import ServerEvents
from generator.plan.answer_text import Written, written_text
from generator.settings import LlmSettings
from schemas.answer import Answer
from tests.clocks import HandClock
from tests.generator.stage import running, unit
from tests.kafka.fuzzing import Mutator, Raw

DIALECTS = {
    path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "dialects").iterdir())
}
GOOD = "openai"
PLAIN = "a plain question"
ANSWER = "It is 330 m high [1]."
TRIES_MAX = 4
EVENTS = "text/event-stream; charset=utf-8"
MORE = (
    b": ping\n\n",
    b"retry: 5\n\n",
    b"id: 7\nevent: message\n",
    b"data: [DONE]\n\n",
    b"data:\n\n",
    b"data:\n" * 10_000,
    b"data: <html>\n\n",
    b"event: error\ndata: overloaded\n\n",
    b'data: {"choices":[]}\n\n',
    b'data: {"choices":[{}],"usage":{"prompt_tokens":-1}}\n\n',
    b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":["a",{"text":4}]}}]}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"content_filter"}]}\n\n',
    b'data: {"error":{"code":400,"message":"no"}}\n\n',
    b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\n',
    b'data: {"object":"error","message":"too long","type":"BadRequestError","code":400}\n\n',
    b'error: {"code":500,"message":"slot failed","type":"server_error"}\n\n',
    b"\xef\xbb\xbf",
    b"\r",
    b"\x00",
)
"""What is put into streams."""
BUSY = (
    b'data: {"error":{"code":"429","message":"later"}}\n\n',
    b'data: {"error_code":"REQUEST_LIMIT_EXCEEDED","message":"later"}\n\n',
)
"""What a busy server sends in place of a stream."""
HEADS = (
    "204 No Content",
    "302 Found\r\nLocation: http://127.0.0.1:1/v1",
    "400 Bad Request",
    "401 Unauthorized",
    "404 Not Found",
    "408 Request Timeout",
    "413 Too Large",
    "422 Unprocessable",
    "429 Too Many\r\nRetry-After: 1",
    "429 Too Many\r\nRetry-After: soon",
    "429 Too Many\r\nRetry-After: -1e309",
    "500 Internal\r\nRetry-After: 999999999",
    "502 Bad Gateway",
    "503 Unavailable",
    "529 Overloaded",
    "200 OK\r\nContent-Encoding: gzip",
    "200 OK\r\nContent-Type: text/html",
    "200 OK\r\nContent-Type: application/json",
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply: its body in `pieces`; after the last one, it `stalls` or ends."""

    head: str = "200 OK"
    pieces: tuple[bytes, ...]
    stalls: bool = False


class StreamMutator:
    """Makes the replies to each question; the same seed gives the same ones.

    `has_stalls`: some stop in the middle; each costs its tries as many time-outs.
    """

    def __init__(self, seed: int, *, has_stalls: bool) -> None:
        self._seed, self._has_stalls = seed, has_stalls

    def reply(self, number: int, tries: int) -> Reply:
        """Returns what question `number` gets: the same stream each time, the same status twice."""
        rng = random.Random(f"{self._seed} {number}")
        if tries <= 2 and number % 50 == 7:
            return Reply(pieces=(rng.choice(BUSY),))
        body = DIALECTS[rng.choice(list(DIALECTS))]
        head = "200 OK"
        if rng.random() < 0.05 and tries <= 2:
            head = rng.choice(HEADS)
        for _ in range(rng.randint(1, 3)):
            body = self._mutated(rng, body)
        cuts = sorted(rng.sample(range(len(body)), min(len(body), rng.choice((0, 1, 9)))))
        pieces = tuple(body[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True))
        if self._has_stalls and rng.random() < 0.01:
            return Reply(head=head, pieces=pieces[: len(pieces) // 2], stalls=True)
        return Reply(head=head, pieces=pieces)

    def _mutated(self, rng: random.Random, body: bytes) -> bytes:
        if rng.random() < 0.3:
            return _mutated_bytes(rng, body)
        events = re.split(rb"(?<=\n\n)", body)
        at, other = rng.randrange(len(events)), rng.randrange(len(events))
        match rng.choice(("field", "field", "twice", "swap", "more", "more", "huge")):
            case "field":  # a wrong type, a lost or odd field, broken JSON
                value = events[at].removeprefix(b"data: ").removesuffix(b"\n\n")
                value = Mutator(rng.randrange(10**9)).mutated(Raw(value)).value or b""
                events[at] = b"data: " + value + b"\n\n"
            case "twice":
                events.insert(at, events[at] * rng.choice((1, 1, 200)))
            case "swap":
                events[at], events[other] = events[other], events[at]
            case "more":
                events.insert(at, rng.choice(MORE))
            case "huge":
                size = rng.choice((3_000, 10_000, 100_000) * 20 + (10_000_000,))
                events[at] = events[at].replace(b'"content":"', b'"content":"' + b"x " * size, 1)
        return b"".join(events)


def _mutated_bytes(rng: random.Random, body: bytes) -> bytes:
    match rng.choice(("flip", "cut", "drop", "ends")):
        case "flip" if body:
            changed = bytearray(body)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case "cut":
            return body[: rng.randrange(len(body) + 1)]
        case "drop":
            begin = rng.randrange(len(body) + 1)
            return body[:begin] + body[begin + rng.randrange(200) :]
    return body.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"")))


class ReplayServer:
    """Gives each question its reply, and others a good one; lists the questions that it took."""

    def __init__(
        self, reply_to: Callable[[int, int], Reply] | None = None, always: Reply | None = None
    ) -> None:
        """`reply_to(number, tries)` returns the reply to an odd question; `always`: to any."""
        self._reply_to = reply_to
        self._always = always
        self.heads: list[str] = []
        self.tries: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()

    def serve(self, reader: BinaryIO, writer: BinaryIO) -> None:
        """Answers the one request of a connection."""
        head = ""
        while line := reader.readline().decode().strip():  # empty, too, if the client leaves
            head += f"{line}\r\n"
        self.heads.append(head)
        length = re.search(r"(?i)content-length: (\d+)", head)
        body = reader.read(int(length[1])) if length else b""
        if self._always is not None:
            reply = self._always
        elif head.startswith("GET /v1/models"):
            listed = json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]})
            reply = Reply(
                head="200 OK\r\nContent-Type: application/json", pieces=(listed.encode(),)
            )
        elif "/chat/completions" not in head:
            reply = Reply(head="404 Not Found", pieces=(b"{}",))
        else:
            reply = self._reply(body)
        lines = "" if "Content-Type" in reply.head else f"\r\nContent-Type: {EVENTS}"
        lines += "\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        writer.write(f"HTTP/1.1 {reply.head}{lines}".encode())
        for piece in filter(None, reply.pieces):
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if reply.stalls:
            reader.read()  # until the client leaves
        writer.write(b"0\r\n\r\n")

    def _reply(self, body: bytes) -> Reply:
        found = re.search(rb"odd question (\d+)", body)
        if found is None:
            return Reply(pieces=(DIALECTS[GOOD],))
        number = int(found[1])
        self.tries[number] += 1
        assert self._reply_to is not None
        reply = self._reply_to(number, self.tries[number])
        is_free = "html" in reply.head or reply.pieces[:1] in ((each,) for each in BUSY)
        self.taken[number] += reply.head.startswith("200 OK") and not is_free
        return reply

    @contextmanager
    def running(self) -> Iterator[LlmSettings]:
        serve = self.serve

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError):  # the client left
                    serve(self.rfile, self.wfile)

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield LlmSettings(
                    base_url=f"http://127.0.0.1:{server.server_address[1]}/v1",
                    model="m",
                    # A server that is only slow, on a busy machine, must not look sick: what it
                    # refuses then is forgiven, and costs more requests (ADR 0025).
                    first_token_timeout_s=5.0,
                    next_token_timeout_s=2.0,
                    tries_max=TRIES_MAX,
                )
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def answering(head: str, body: str) -> Iterator[LlmSettings]:
    """Settings for a server that answers every request with this, however slow the machine is."""
    with ReplayServer(always=Reply(head=head, pieces=(body.encode(),))).running() as llm:
        yield LlmSettings(base_url=llm.base_url, model=llm.model)


# ---- as they are


@pytest.mark.parametrize(
    ("dialect", "model", "tokens"),
    [
        ("azure", "gpt-4o-mini-2024-07-18", (96, 14, 0)),
        ("databricks", "us.anthropic.claude-sonnet-4", (105, 24, 0)),
        ("litellm", "claude-sonnet-4", (103, 18, 0)),
        ("llama_cpp", "gemma-3-4b-it-Q4_K_M.gguf", (97, 15, 0)),
        ("mistral", "magistral-medium-2509", (95, 25, 0)),
        ("ollama", "llama3.2:3b", (98, 16, 0)),
        ("openai", "gpt-4o-mini-2024-07-18", (96, 14, 64)),
        ("sglang", "meta-llama/Llama-3.1-8B-Instruct", (99, 21, 0)),
        ("vllm", "Qwen/Qwen3-8B", (101, 17, 96)),
    ],
)
def test_each_dialect_is_read_whole(dialect: str, model: str, tokens: tuple[int, int, int]) -> None:
    events = ServerEvents("m")
    text = events.feed(DIALECTS[dialect], is_last=True)
    assert written_text(text, is_cut=False) == Written(answer=ANSWER, is_complete=True)
    end = events.finished()
    assert (events.has_ended, end.finish_reason, end.model) == (True, "stop", model)
    assert (end.input_tokens, end.output_tokens, end.cached_tokens) == tokens


def test_each_dialect_becomes_an_answer_with_its_citations() -> None:
    server = ReplayServer(lambda number, tries: Reply(pieces=(list(DIALECTS.values())[number],)))
    with server.running() as llm, running(OpenAiLlm(llm), llm=llm) as run:
        for number in range(len(DIALECTS)):
            run.offer(unit(f"odd question {number}"))
        for answer in run.wait_for_answers(len(DIALECTS)):
            assert (answer.status, answer.answer, answer.attempts) == ("ok", ANSWER, 1)
            assert [citation.n for citation in answer.citations] == [1]


def test_the_key_of_the_settings_is_sent_and_never_printed() -> None:
    server = ReplayServer()
    with server.running() as llm:
        keyed = msgspec.structs.replace(llm, api_key=Secret("sk-1"))
        with running(OpenAiLlm(keyed), llm=keyed) as run:
            run.offer(unit(PLAIN))
            run.wait_for_answers(1)
    assert all("authorization: bearer sk-1\r\n" in head.lower() for head in server.heads)
    assert "sk-1" not in repr(keyed)


REFUSED = (
    b'data: {"choices":[{"delta":{"content":null,"refusal":"I can\xe2\x80\x99t "}}]}\n\n'
    b'data: {"choices":[{"delta":{"refusal":"help."}}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
"""A refusal in pieces, as OpenAI's API sends it."""
REFUSED_WHOLE = (
    b'{"choices":[{"message":{"content":null,"refusal":"I can\xe2\x80\x99t help."},'
    b'"finish_reason":"content_filter"}]}'
)


@pytest.mark.parametrize("reply", [REFUSED, REFUSED_WHOLE], ids=["in pieces", "whole"])
def test_what_a_model_says_in_place_of_an_answer_is_the_reason(reply: bytes) -> None:
    server = ReplayServer(lambda number, tries: Reply(pieces=(reply,)))
    with server.running() as llm, running(OpenAiLlm(llm), llm=llm) as run:
        (answer,) = run.ask(unit("odd question 1"))
    assert (answer.status, answer.answer, answer.attempts) == ("failed", None, 1)
    assert answer.error is not None
    assert answer.error.message.endswith("; it refused: I can\u2019t help.")


# ---- mutated


@dataclass
class Fuzzed:
    """What came of the questions."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    """The id and the text of each."""
    answers: dict[str, Answer] = field(default_factory=dict)
    taken: Counter[int] = field(default_factory=Counter)
    grew_mib: float = 0.0


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


def fuzz(count: int, seed: int, *, has_stalls: bool) -> Fuzzed:
    """Asks `count` odd questions, and after every fourth one a plain one."""
    found = Fuzzed()
    before_mib = largest_mib = resident_mib()
    server = ReplayServer(StreamMutator(seed, has_stalls=has_stalls).reply)
    with (
        capture_logs(),  # tracebacks with all variables take seconds
        server.running() as llm,
        running(OpenAiLlm(llm), llm=llm, clock=HandClock()) as run,
    ):
        texts = [PLAIN]
        for number in range(count):
            texts += [f"odd question {number}"] + [PLAIN] * (number % 4 == 3)
        while len(run.sink.dones) < len(texts):
            dones = len(run.sink.dones)
            run.tick()
            for text in texts[len(found.asked) :][: run.stage.credit().records]:
                run.offer(one := unit(text))
                found.asked.append((one.record.query.query_id, text))
            threading.Event().wait(0.001)
            largest_mib = max(largest_mib, resident_mib())
            if len(run.sink.dones) == dones and not run.metric("llm_requests_in_flight"):
                run.clock.sleep(1_000_000)
        answers = run.sink.answers
    assert len({answer.query_id for answer in answers}) == len(answers) == len(texts)
    found.answers, found.taken = {answer.query_id: answer for answer in answers}, server.taken
    found.grew_mib = largest_mib - before_mib
    return found


def check(found: Fuzzed) -> None:
    """Every question has an answer, or the reason why not; the plain ones have their answer."""
    for id, text in found.asked:
        answer = found.answers[id]
        if text == PLAIN:
            assert (answer.status, answer.answer) == ("ok", ANSWER)
        elif answer.status == "failed":
            assert answer.error is not None and len(answer.error.message) > 20
            assert answer.error.type == "llm_refused"
        else:
            assert answer.status in ("ok", "partial") and answer.answer
    assert max(found.taken.values()) <= TRIES_MAX, "a question costs more requests than allowed"
    assert found.grew_mib < 500
    statuses = Counter(answer.status for answer in found.answers.values())
    print(statuses, "requests:", found.taken.total(), "MiB more:", round(found.grew_mib))


def test_120_mutated_replies_end_in_an_answer_or_a_reason() -> None:
    check(fuzz(120, seed=1, has_stalls=False))  # test_engines.py has silences


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_2_500_mutated_replies_end_in_an_answer_or_a_reason(seed: int) -> None:
    check(fuzz(2_500, seed, has_stalls=True))
