"""`carpool up` with nothing: documents are put, changed, deleted, saved, and there again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from carpool.guard import GuardedProcess
from producers import Client
from schemas.answer import Answer
from tests.cli.support import carpool
from tests.waiting import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
SETTINGS = ("up.broker_port=0", "up.http_port=0", "searcher.direct_io=auto", "llm.engine=none")


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Everything runs; yields where the broker is. Ends it with Ctrl-C."""
    run_file = folder / ".carpool/run/run.json"
    options = [f"--set={each}" for each in SETTINGS]
    up = GuardedProcess[str](
        [sys.executable, "-m", "carpool", "up", "--index", "index", "--model=hashing:64", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    )
    try:
        wait_until(
            lambda: run_file.exists() and json.loads(run_file.read_text())["is_ready"], "is ready"
        )
        yield json.loads(run_file.read_text())["bootstrap"]
    finally:
        up.send_signal(signal.SIGINT)
        text, _ = up.communicate(timeout=WAIT_S)
    assert up.returncode == 0, text
    assert "saved:" in text


def texts_of(answer: Answer) -> list[str]:
    assert answer.status == "ok", answer.error
    return [each.text for each in answer.quotes]


async def change(bootstrap: str) -> None:
    """Each question after a change finds it, and what was before it is never found again."""
    async with Client(bootstrap) as client:

        async def ask(after: Any) -> Answer:
            question = "Which fish does the zorblax eat?"
            return await client.ask(question, after=after, timeout_s=WAIT_S)

        put = await client.put("zorblax", text="The zorblax eats red fish.")
        answer = await ask(put)
        assert texts_of(answer) == ["The zorblax eats red fish."]
        assert answer.corpus is not None
        assert answer.corpus.position[put.partition] >= put.offset
        for color in ("blue", "green", "grey"):
            put = await client.put(
                "zorblax", passages=[f"The zorblax eats {color} fish.", "Or two."]
            )
            answer = await ask(put)
            assert texts_of(answer)[0] == f"The zorblax eats {color} fish."
            assert {each.id for each in answer.retrieved} == {"zorblax#1", "zorblax#2"}
        whole, part, none = await client.fetch("zorblax", "zorblax#2", "nobody", after=put)
        assert [each.text for each in whole.passages] == ["The zorblax eats grey fish.", "Or two."]
        assert (part.count, [each.n for each in part.passages], none.count) == (2, [1, 2], 0)
        assert not (await ask(await client.delete("zorblax"))).retrieved
        beyond = type("Put", (), {"position": {put.partition: 10**15}})()
        refused = await ask(beyond)
        assert refused.error is not None and refused.error.type == "invalid_value"
        assert "no put has returned" in refused.error.message
        await client.put("kept", text="The quimby bear sleeps all winter.")


@pytest.mark.slow
def test_a_corpus_begins_with_nothing_changes_and_is_there_the_next_time(tmp_path: Path) -> None:
    with running(tmp_path) as bootstrap:
        asyncio.run(change(bootstrap))
        notes = tmp_path / "notes"
        notes.mkdir()
        (notes / "a.md").write_text("# Owls\n\nThe frindle owl counts to nine.\n")
        at = f"-b {bootstrap}"
        assert "1 sent" in carpool(f"corpus put {notes} {at}").stderr
        assert carpool(f"corpus save {at} --json").json["rows"] == 2
        assert "1 unchanged" in carpool(f"corpus put {notes} {at}").stderr
        answer = carpool(f"ask 'What does the frindle owl count to?' --json {at}").json
        assert answer["quotes"][0]["text"] == "The frindle owl counts to nine."
        wait_until(
            lambda: (
                carpool(f"ask 'Who sleeps?' --json {at}").json["corpus"]["base"]
                == carpool(f"corpus status --json {at}").json["base"]["name"]
            ),
            "the base is searched",
        )
    with running(tmp_path) as bootstrap:
        answer = carpool(f"ask 'What does the quimby bear do?' --json -b {bootstrap}").json
        assert answer["quotes"][0]["text"] == "The quimby bear sleeps all winter."
        assert carpool(f"corpus put {notes} -b {bootstrap}").code == 0
