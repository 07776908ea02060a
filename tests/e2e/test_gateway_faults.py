"""Gateways in front of whole services, while a generator or a gateway dies.

No client gets a mixed text: it has the whole text of a try of the model, or the beginning of one
and an error. The stand-in of the LLM server counts how often it was paid for each question.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import openai
import pytest

from bench.core.embedded_broker import EmbeddedBroker
from bench.core.stack import LOOPBACK, ServiceProcess, Stack, clean_environment
from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import free_port
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from carpool.testing.llm_api import ChatRequest
from carpool.testing.llm_server import LlmServer
from carpool.testing.llm_text import prompt_text
from gateway.keys import key_of, new_key
from tests.e2e.support import services
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.long

ASKED = re.compile(r"what of the (\w+ n\d+)\?")
TOKENS = {"river": 60, "comet": 60, "glacier": 450}
"""Of an answer, ten a second: one to a `glacier` takes longer than a gateway that ends."""
LONG: dict[str, Any] = {"kind": "glacier", "max_output_tokens": 450}
SAMPLED: dict[str, Any] = {"temperature": 1}  # so no answer is reused for an equal prompt
KEY = new_key()


class Llm(LlmServer):
    """Writes another text of a `comet` at each try. `paid` counts the tries by question."""

    def __init__(self) -> None:
        super().__init__(tokens_per_second=10)
        self.paid = Counter[str]()

    def text(self, chat: ChatRequest) -> str:
        self.paid[name := ASKED.findall(prompt_text(chat.messages))[-1]] += 1
        return text_of(name, self.paid[name])


def text_of(name: str, attempt: int) -> str:
    kind, number = name.split()
    word = f"{number}-{attempt if kind == 'comet' else 'always'}"
    return " ".join(f"{word}-{n}" for n in range(TOKENS[kind]))


@dataclass
class Got:
    """What the client of a question got: a text, whether it is whole, and why not."""

    name: str
    text: str = ""
    is_whole: bool = False
    why: str = ""

    def check(self) -> None:
        """Asserts that nothing is mixed."""
        texts = [text_of(self.name, attempt) for attempt in (1, 2)]
        is_part = self.why and any(text.startswith(self.text) for text in texts)
        assert self.text in texts if self.is_whole else is_part, self

    @contextmanager
    def until_error(self) -> Iterator[None]:
        try:
            yield
        except openai.APIError as error:
            self.why = repr(error)


Way: TypeAlias = Callable[..., None]
Asked: TypeAlias = dict[str, Got]


class Gateway:
    """A gateway process, and what its clients do."""

    def __init__(self, here: Deployment, port: int) -> None:
        self.port, pages, folder = port, free_port(), here.folder
        (keys := folder / "keys").write_bytes(msgspec.json.encode(key_of(KEY, "a")))
        environ = {
            "CARPOOL_KAFKA_BOOTSTRAP": here.stack.bootstrap,
            "CARPOOL_GATEWAY_KEYS_FILE": str(keys),
            "CARPOOL_HTTP_PORT": str(pages),
        }
        self.process = ServiceProcess(
            (sys.executable, "-m", "carpool", "gateway", "--no-tell", "--port", str(port)),
            environ=clean_environment() | environ,
            log_file=folder / f"{pages}.log",
            port=pages,
            ready_page="/readyz",
        )

    def sdk(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://{LOOPBACK}:{self.port}/v1", api_key=KEY, **options)

    def whole(self, got: Got, *, sdk: Any = None, **more: Any) -> None:
        with self.sdk(**(sdk or {})) as client, got.until_error():
            made = client.responses.create(
                model="carpool", input=f"what of the {got.name}?", **more
            )
            got.text, got.is_whole = made.output_text, True

    def response(self, got: Got, **more: Any) -> None:
        asked = {"model": "carpool", "input": f"what of the {got.name}?", **more}
        with self.sdk() as client, got.until_error():
            for event in client.responses.create(**asked, stream=True):
                got.text += event.delta if event.type == "response.output_text.delta" else ""
                got.why += repr(event.response.error) if event.type == "response.failed" else ""
                got.is_whole |= event.type == "response.completed"

    def chat(self, got: Got, **more: Any) -> None:
        messages = [{"role": "user", "content": f"what of the {got.name}?"}]
        asked = {"model": "carpool", "messages": messages, **more}
        with self.sdk() as client, got.until_error():
            for chunk in client.chat.completions.create(**asked, stream=True):
                got.text += chunk.choices[0].delta.content or ""
                got.is_whole |= chunk.choices[0].finish_reason == "stop"


class Deployment:
    """Whole services with a gateway, and threads for its clients."""

    def __init__(self, stack: Stack, llm: Llm, folder: Path) -> None:
        self.stack, self.paid, self.folder = stack, llm.paid, folder
        self.gateway = Gateway(self, free_port())
        self.threads = ThreadPoolExecutor(64)
        self._ends: dict[str, Future[None]] = {}

    def ask(self, way: Way, kind: str = "river", **options: Any) -> Asked:
        """Begins to ask four new questions, and waits until the model was paid for each."""
        names = [f"{kind} n{len(self._ends) + n}" for n in range(4)]
        asked = self.again(way, names, **options)
        wait_until(lambda: self.paid.keys() >= set(names), lambda: (names, self.paid))
        return asked

    def again(
        self, way: Way, names: Iterable[str], *, has_key: bool = False, **options: Any
    ) -> Asked:
        """Begins to ask questions. `has_key`: each with an Idempotency-Key of its own."""
        asked = {name: Got(name) for name in names}
        for name, got in asked.items():
            headers = {"Idempotency-Key": name} if has_key else {}
            self._ends[name] = self.threads.submit(way, got, extra_headers=headers, **options)
        return asked

    def ended(self, *all_asked: Asked, paid_max: int, may_fail: bool = False) -> None:
        """Waits until clients have ended, and asserts how, and what was paid."""
        for name, got in (each for asked in all_asked for each in asked.items()):
            self._ends[name].result(WAIT_S)
            got.check()
            assert (got.is_whole or may_fail) and self.paid[name] <= paid_max, (got, self.paid)


@pytest.fixture(scope="module")
def here(
    request: pytest.FixtureRequest, small_index: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("here")
    is_embedded = getattr(request, "param", "embedded") == "embedded"
    kind = EmbeddedBroker() if is_embedded else KafkaServer(folder / "kafka")
    with kind as broker, (llm := Llm()):
        create_topics(KafkaSettings(bootstrap=(at := broker.bootstrap)))
        with services(at, small_index, folder, llm, GENERATOR_CONCURRENCY="64") as stack:
            made = Deployment(stack, llm, folder)
            with made.gateway.process, made.threads:
                yield made


def have_begun(*streams: Asked) -> None:
    wait_until(lambda: all(got.text for asked in streams for got in asked.values()))


@pytest.mark.parametrize(
    "here",
    ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)],
    indirect=True,
)
def test_a_stream_is_whole_or_fails_where_a_generator_begins_again(here: Deployment) -> None:
    ways = (here.gateway.response, here.gateway.chat)
    same, other = ([here.ask(way, kind) for way in ways] for kind in ("river", "comet"))
    have_begun(*same, *other)
    here.stack["generator"].kill()
    here.stack["generator"].start()
    here.ended(*same, paid_max=2)
    here.ended(*other, paid_max=2, may_fail=True)
    for got in (*other[0].values(), *other[1].values()):
        assert got.is_whole == (here.paid[got.name] == 1) == ("another answer" not in got.why)


def test_a_killed_gateway_costs_a_payment_a_retry_and_none_with_a_key(here: Deployment) -> None:
    gateway = here.gateway
    for has_key in (False, True):
        options = {"has_key": has_key, **SAMPLED}
        waits = here.ask(gateway.whole, sdk={"max_retries": 5}, **options)  # two last 1.5 s
        streams = {way: here.ask(way, **options) for way in (gateway.response, gateway.chat)}
        have_begun(*streams.values())
        gateway.process.kill()
        gateway.process.start()
        here.ended(*streams.values(), paid_max=1, may_fail=True)
        gateway.process.wait_ready()
        again = (here.again(way, asked, **options) for way, asked in streams.items())
        here.ended(waits, *again, paid_max=1 if has_key else 2)


def test_a_stopped_gateway_ends_short_answers_and_its_successor_long_ones(here: Deployment) -> None:
    old = here.gateway
    short = [here.ask(way, **SAMPLED) for way in (old.whole, old.response, old.chat)]
    keyed, other = (here.ask(old.whole, **LONG, has_key=key, **SAMPLED) for key in (True, False))
    os.kill(old.process.pid, signal.SIGTERM)
    with Gateway(here, old.port).process:
        here.ended(*short, keyed, paid_max=1)
        here.ended(other, paid_max=2)
        assert old.process.stop() == 0
    old.process.start()
    old.process.wait_ready()


@pytest.mark.parametrize("dies", [True, False])
def test_what_one_gateway_did_not_answer_another_does_and_a_key_is_paid_once(
    here: Deployment, dies: bool
) -> None:
    """One that does not die withdraws a question without a key three seconds later."""
    sdk = {} if dies else {"timeout": 2.0, "max_retries": 0}
    for has_key in (False, True):
        options = {"has_key": has_key, **SAMPLED}
        with (first := Gateway(here, free_port())).process:
            asked = [here.ask(first.whole, sdk=sdk, **options) for _ in range(2)]
            if dies:
                first.process.kill()
            here.ended(*asked, paid_max=1, may_fail=True)
            ways = zip((here.gateway.whole, here.gateway.response), asked, strict=True)
            again = [here.again(way, names, **options) for way, names in ways]
            here.ended(*again, paid_max=1 if has_key else 2)
