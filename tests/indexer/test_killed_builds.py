"""A build that is killed goes on where it was, and ends in the same bytes."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.disk.index import INDEX_FILES
from tests.indexer.helpers import write_corpus

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from cli.index import app; app()"


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: SIGKILL does not tell them apart, and hundreds of fsyncs cost nothing."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.timeout(300)
def test_a_build_killed_at_any_step_ends_in_the_bytes_of_one_that_was_not(folder: Path) -> None:
    program = Path(__file__).with_name("killed_builds.py")
    run = subprocess.run(
        [sys.executable, str(program), str(folder)],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    for found in json.loads(run.stdout).values():
        assert found["killed"] == found["steps"] >= 40
        assert found["differ"] == []  # steps after which the bytes were others
        assert found["left"] == []  # or something was left behind
        assert found["mixed"] == []  # or an index could be opened that was neither the old nor the new one
        # Only a life that died when all was in place finds an index that it did not expect.
        assert found["refused"] <= 4
        first_life = [version for version in found["versions"] if version == "2027-01-15T08:00"]
        assert len(first_life) >= len(found["versions"]) - 8


@pytest.mark.parametrize("seed", [1, 2])
def test_the_command_itself_killed_from_outside_while_it_embeds_is_resumed(folder: Path, seed: int) -> None:
    corpus = write_corpus(folder / "c.jsonl", 6000)
    common = ["build", str(corpus), "--model", "hashing:16", "--set", "indexer.shard_rows=10", "--json"]

    def command(out: Path) -> list[str]:
        return [sys.executable, "-c", BUILD, *common, "--out", str(out)]

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    shards = folder / "killed" / ".build" / "shards"
    embedded = 0
    chance = random.Random(seed)
    for _ in range(2):
        enough = embedded + chance.randrange(3, 20)
        process = subprocess.Popen(
            command(folder / "killed"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while process.poll() is None and len(list(shards.glob("*.f32"))) < enough:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL  # it was still at work
        embedded = len(list(shards.glob("*.f32")))
        assert enough <= embedded < 600
    resumed = subprocess.run(command(folder / "killed"), env=environment, capture_output=True, check=True)
    assert f"embedding: {embedded * 10:,} of 6,000 were done before".encode() in resumed.stderr
    subprocess.run(command(folder / "whole"), env=environment, capture_output=True, check=True)
    for name in INDEX_FILES:
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name
