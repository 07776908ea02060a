"""What Carpool is compared with, as a process that reads questions and writes answers, on Kafka.

`blocking` runs batches of questions, as scripts with LangChain do: each step of a batch waits for
its slowest. `langgraph` runs each question alone, in a graph of LangGraph with its SQLite
checkpointer; one that was killed goes on from the checkpoints. Both run the same programs with the
same prompts, index and server as Carpool.
"""

from __future__ import annotations

import asyncio
import operator
import os
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Producer
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from bench.core.kafka import kafka_settings
from carpool.clock import SystemClock
from carpool.kafka.client_config import producer_config
from carpool.kafka.topic_reader import TopicReader
from carpool.settings import load_settings
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from carpool.workflow.load import load_programs
from carpool.workflow.program import NextSteps, find
from carpool.workflow.resume import resume
from carpool.workflow.steps import Generate, Retrieve
from generator.prompts import fill_step, load_templates
from generator.settings import GeneratorSettings
from schemas.answer import Answer, StepDone
from schemas.codec import decode_query, encode
from schemas.topics import ANSWERS, QUERIES
from schemas.workflow import StepResult
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings

BATCH_MAX = 32
"""Questions of a batch: as many as the server runs at once."""
STEPS_MAX = 50
DURABILITY = "async"
"""LangGraph's default: a checkpoint is written while the next step runs."""
TOP_K = SearcherSettings().top_k_default
POLL_S = 0.05

Round: TypeAlias = tuple[StepResult, ...]


class Asked(NamedTuple):
    """A question."""

    id: str
    question: str
    workflow: str


class State(TypedDict):
    """The state of a graph of LangGraph: what each checkpoint has."""

    asked: list[str]
    rounds: Annotated[list[bytes], operator.add]
    is_over: bool


class Sections(msgspec.Struct):
    """The settings of Carpool's searcher that the baselines have too."""

    searcher: SearcherSettings


class Work:
    """Questions that wait, the programs, the index, the templates, the server and the broker."""

    def __init__(self) -> None:
        """Blocks until the model that embeds is loaded. The settings are those of a service."""
        index, url = os.environ["CARPOOL_INDEX_DIR"], os.environ["CARPOOL_LLM_BASE_URL"]
        self.questions: asyncio.Queue[Asked] = asyncio.Queue()
        self._kafka = kafka_settings(os.environ)
        self._producer = Producer(producer_config(self._kafka))
        self._programs, self._settings = load_programs(), GeneratorSettings()
        self._templates = load_templates(self._settings)
        own = load_settings(Sections, file=None, environ=os.environ).searcher
        own = msgspec.structs.replace(own, direct_io="auto")
        self._searcher = LocalSearcher(index, settings=own)
        self._searcher.search(["The first text loads the model."])
        client = DefaultAsyncHttpxClient(trust_env=False)
        self._llm = AsyncOpenAI(base_url=url, api_key="-", http_client=client)

    def next_steps(self, asked: Asked, rounds: Sequence[Round]) -> NextSteps:
        """Returns what the program of a question asks for next."""
        program = find(self._programs, asked.workflow)
        assert program is not None, asked.workflow
        return resume(program, asked.question, rounds)

    def read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reads all questions from the first one on, for ever."""
        with TopicReader(self._kafka, SystemClock(), name="baseline") as reader:
            reader.add(dict.fromkeys(reader.partitions(QUERIES.name), OFFSET_BEGINNING))
            while True:
                for record in reader.poll(1_000, POLL_S).messages:
                    query = decode_query(record.value, record.headers, record.source)
                    asked = Asked(query.query_id, query.text or "", str(query.workflow))
                    loop.call_soon_threadsafe(self.questions.put_nowait, asked)

    def answer(self, asked: Asked, rounds: Sequence[Round]) -> None:
        """Writes the answer, which the last round has."""
        steps = [
            StepDone(n=n, kind="generate" if one.hits is None else "retrieve", text=one.text)
            for n, done in enumerate(rounds[:-1], 1)
            for one in done
        ]
        answer = Answer(
            query_id=asked.id,
            status="ok",
            is_final=True,
            replayed=False,
            attempts=1,
            citations=(),
            retrieved=(),
            answer=rounds[-1][-1].text,
            steps=tuple(steps),
        )
        value, headers = encode(answer, event_id=asked.id, source="baseline", time_us=0)
        topic = self._kafka.broker_topic(ANSWERS.name)
        self._producer.produce(topic, value, asked.id, headers=list(headers))
        self._producer.poll(0)

    async def perform(
        self, *asked: tuple[Sequence[Retrieve | Generate], Sequence[Round]]
    ) -> list[StepResult]:
        """Performs steps side by side, each after its rounds: the searches in one batch."""
        steps = [(step, rounds) for of_one, rounds in asked for step in of_one]
        searches = [step for step, _ in steps if isinstance(step, Retrieve)]
        said = asyncio.gather(
            *(self._said(step, rounds) for step, rounds in steps if isinstance(step, Generate))
        )
        found = iter(await asyncio.to_thread(self._found, searches) if searches else ())
        texts = iter(await said)
        return [next(found if isinstance(step, Retrieve) else texts) for step, _ in steps]

    def _found(self, steps: Sequence[Retrieve]) -> list[StepResult]:
        counts = [step.top_k or TOP_K for step in steps]
        results = self._searcher.search([step.text for step in steps], top_k=max(counts))
        return [
            StepResult(digest=step.digest(), text=step.text, hits=result.hits[:count])
            for step, count, result in zip(steps, counts, results, strict=True)
        ]

    async def _said(self, step: Generate, rounds: Sequence[Round]) -> StepResult:
        settings, results = self._settings, (each for round in rounds for each in round)
        searches = [each.hits for each in results if each.hits is not None]
        prompt = fill_step(step, settings, self._templates, searches=searches)
        reply = await self._llm.chat.completions.create(
            model=STAND_IN_MODEL,
            messages=[
                {"role": "system", "content": prompt.system},
                {"role": "user", "content": prompt.user},
            ],
            max_tokens=step.max_tokens or settings.max_tokens,
            temperature=0.0,
        )
        return StepResult(digest=step.digest(), text=reply.choices[0].message.content or "")


async def blocking(work: Work) -> None:
    """Runs batches: the next one begins when the last question of this one has ended."""
    while True:
        live: list[tuple[Asked, list[Round]]] = [(await work.questions.get(), [])]
        while not work.questions.empty() and len(live) < BATCH_MAX:
            live.append((work.questions.get_nowait(), []))
        while live:
            wanted = [work.next_steps(*one) for one in live]
            asks = ((one.steps, rounds) for one, (_, rounds) in zip(wanted, live, strict=True))
            results = iter(await work.perform(*asks))
            for one, (asked, rounds) in zip(wanted, live, strict=True):
                rounds.append(tuple(next(results) for _ in one.steps))
                if one.answer is not None:
                    work.answer(asked, rounds)
            live = [one for one, steps in zip(live, wanted, strict=True) if steps.answer is None]


async def langgraph(work: Work, checkpoints: str) -> None:
    """Runs each question alone; first those that have begun, by the checkpoints."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # type: ignore[import-not-found]
    from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]

    async def step(state: State) -> dict[str, Any]:
        rounds = decoded(state["rounds"])
        wanted = work.next_steps(Asked(*state["asked"]), rounds)
        done = msgspec.json.encode(await work.perform((wanted.steps, rounds)))
        return {"rounds": [done], "is_over": wanted.answer is not None}

    async def run(id: str, given: State | None) -> None:
        config = {"configurable": {"thread_id": id}, "recursion_limit": STEPS_MAX}
        state = await graph.ainvoke(given, config, durability=DURABILITY)
        work.answer(Asked(*state["asked"]), decoded(state["rounds"]))

    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: END if state["is_over"] else "step")
    async with AsyncSqliteSaver.from_conn_string(checkpoints) as saver, asyncio.TaskGroup() as all:
        graph = builder.compile(checkpointer=saver)
        await saver.setup()
        begun = {one.config["configurable"]["thread_id"] async for one in saver.alist(None)}
        while True:
            asked = await work.questions.get()
            if asked.id not in begun:
                new = State(asked=list(asked), rounds=[], is_over=False)
                all.create_task(run(asked.id, new))
            elif (await graph.aget_state({"configurable": {"thread_id": asked.id}})).next:
                all.create_task(run(asked.id, None))


def decoded(rounds: Sequence[bytes]) -> list[Round]:
    """Returns the rounds of a state."""
    return [msgspec.json.decode(one, type=Round) for one in rounds]


async def main(checkpoints: str) -> None:
    """Runs LangGraph if there is a file for `checkpoints`, else batches, until it is killed."""
    work = Work()
    reading = threading.Thread(target=work.read, args=[asyncio.get_running_loop()], daemon=True)
    reading.start()
    port = int(os.environ["CARPOOL_HTTP_PORT"])
    await asyncio.start_server(say_ready, "127.0.0.1", port)
    await (langgraph(work, checkpoints) if checkpoints else blocking(work))


def say_ready(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
    writer.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
