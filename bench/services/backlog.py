"""The run of `carpool bench backlog`: a file of questions, by Carpool and by a script, one vLLM.

The script (`backlog_script.py`) is what people write: sentence-transformers, FAISS, asyncio, and it
resumes from its own output. Both answer the same questions with three passages, eight at a time.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.core.session import Session
from bench.core.stack import SERVICES, ServiceProcess, begin_python, llm_url
from bench.data.evaluation import CORPUS, NATURAL
from bench.services.corpus import CorpusRun
from bench.services.options import BacklogOptions
from carpool.embedding import EmbeddingSettings
from carpool.embedding.files import find_model
from carpool.errors import CarpoolError
from carpool.kafka.embedded import free_port
from carpool.vllm import VllmSettings, check_vllm, model_name, vllm_command, vllm_environment

SCRIPT = Path(__file__).with_name("backlog_script.py")
CARPOOL, PLAIN = "carpool", "script"
OF_ZIPF = 60
"""Questions that the Zipf load repeats."""
POLL_S = 0.2


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant and a load. `cpu_s`: without vLLM, with the services; `computed_tokens`: of
    prompts, without those of the prefix cache, and of answers. `twice`: lines beyond one each.
    """

    seconds: float
    cpu_s: float
    computed_tokens: float
    requests: float
    lost: int
    twice: int


def run(options: BacklogOptions) -> bool:
    corpus = CorpusRun("backlog", options)
    natural = [each.text or "" for each in corpus.data.questions(NATURAL)]
    rng, vllm, port = random.Random(options.seed), VllmSettings(), free_port()
    ranks = rng.choices(range(OF_ZIPF), [1 / n for n in range(1, OF_ZIPF + 1)], k=options.questions)
    loads = {
        NATURAL: natural[: options.questions],
        "Zipf": [natural[-1 - rank] for rank in ranks],
    }
    corpus.settings |= {
        "CARPOOL_LLM_MODEL": model_name(vllm),
        "CARPOOL_GENERATOR_PARTIALS": "false",
        **corpus.settings,
    }
    check_vllm(vllm)
    found: dict[str, dict[str, Answered]] = {}
    with ServiceProcess(
        vllm_command(vllm, port),
        environ={**vllm_environment(os.environ), "VLLM_SERVER_DEV_MODE": "1"},
        log_file=corpus.folder / "vllm.log",
        port=port,
    ) as server:
        for name, texts in loads.items():
            for is_killed in (False, True):
                what = f"{name}, killed in the middle" if is_killed else name
                for who in (CARPOOL, PLAIN):
                    one = Contest(corpus, server, port, model_name(vllm), f"{what}, {who}", texts)
                    found.setdefault(what, {})[who] = one.run(who, is_killed=is_killed)
                    corpus.note(f"{what}, {who}: {found[what][who]}")
    promises = {
        f"{what}: carpool loses no line, and has none twice": each[CARPOOL].lost == 0
        and each[CARPOOL].twice == 0
        for what, each in found.items()
    }
    return corpus.finish(found, promises=promises, results=found, **corpus.facts())


class Contest:
    """One load for one contestant."""

    def __init__(
        self,
        corpus: CorpusRun,
        server: ServiceProcess,
        port: int,
        model: str,
        name: str,
        texts: Sequence[str],
    ) -> None:
        self._corpus, self._server, self._port, self._model = corpus, server, port, model
        self._name, self._count = name.replace(", ", "-").replace(" ", "-"), len(texts)
        self._folder = corpus.folder / self._name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._out = self._folder / "answers.jsonl"
        self._out.unlink(missing_ok=True)
        rows = ({"custom_id": str(n), "text": text} for n, text in enumerate(texts))
        lines = (msgspec.json.encode(row) + b"\n" for row in rows)
        (self._folder / "questions.jsonl").write_bytes(b"".join(lines))

    def run(self, who: str, *, is_killed: bool) -> Answered:
        """Blocks. A contestant that is killed is started again, and goes on."""
        status, text = self._server.page("/reset_prefix_cache", b"")
        if status != 200:
            raise CarpoolError(f"vLLM does not forget its prefixes: {status} {text}")
        if who == PLAIN:
            return self._measure(self._plain(), is_killed, lambda: 0.0, lambda: None)
        with self._corpus.session(SERVICES, self._name, llm_url=llm_url(self._port)) as session:
            command = self._batch(session)
            services = session.stack.services()
            return self._measure(
                command, is_killed, lambda: sum(map(cpu_of, services)), lambda: restart(services)
            )

    def _plain(self) -> list[str]:
        data, embedder = self._corpus.data, find_model(EmbeddingSettings())
        files = [data.corpus_path, data.vectors_path(CORPUS), embedder]
        url = llm_url(self._port)
        return [str(SCRIPT), "questions.jsonl", "answers.jsonl", *map(str, files), url, self._model]

    def _batch(self, session: Session) -> list[str]:
        options = ["--out", "answers.jsonl", "--take-over", "-b", session.stack.bootstrap]
        return ["-m", "carpool", "batch", "run", "questions.jsonl", *options]

    def _measure(
        self,
        command: Sequence[str],
        is_killed: bool,
        services_s: Callable[[], float],
        restart: Callable[[], None],
    ) -> Answered:
        before_s, before, began_s = services_s(), self._counts(), time.monotonic()
        process, own_s, lost_s = begin_python(command, self._folder), 0.0, 0.0
        while is_killed and self._lines().total() < self._count // 2:
            time.sleep(POLL_S)
        if is_killed:
            lost_s = services_s() - before_s
            process.kill()
            own_s += rusage_s(process)
            restart()
            before_s, process = services_s(), begin_python(command, self._folder)
        own_s += rusage_s(process)
        seconds, lines = time.monotonic() - began_s, self._lines()
        after = self._counts()
        return Answered(
            seconds=seconds,
            cpu_s=own_s + lost_s + services_s() - before_s,
            computed_tokens=after["tokens"] - before["tokens"],
            requests=after["requests"] - before["requests"],
            lost=self._count - len(lines),
            twice=lines.total() - len(lines),
        )

    def _lines(self) -> Counter[str]:
        if not self._out.exists():
            return Counter()
        content = self._out.read_bytes()
        whole = content[: content.rfind(b"\n") + 1].splitlines()
        rows = map(msgspec.json.decode, whole)
        return Counter(row.get("custom_id") or row["id"] for row in rows)

    def _counts(self) -> Counter[str]:
        """Returns what vLLM has computed, and the requests that it has ended."""
        metric = self._server.metric
        computed = metric("vllm:prompt_tokens_total") - metric("vllm:prompt_tokens_cached_total")
        found = Counter[str]()
        found["tokens"] = round(computed + metric("vllm:generation_tokens_total"))
        found["requests"] = round(metric("vllm:request_success_total"))
        return found


def rusage_s(process: subprocess.Popen[bytes]) -> float:
    """Waits for a process; returns its CPU seconds. Raises `CarpoolError` where it failed."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode > 1:
        raise CarpoolError(f"{process.args!r} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def cpu_of(process: ServiceProcess) -> float:
    """Returns the CPU seconds of a running process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def restart(services: Sequence[ServiceProcess]) -> None:
    """Kills all services, and starts them again."""
    for each in services:
        each.kill()
    for each in services:
        each.start()
    for each in services:
        each.wait_ready()
