"""What is said while something long goes on."""

import io
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from rich.console import Console

import indexer.build
from carpool.errors import ConfigError
from indexer.build import BuildRequest, build_index
from indexer.progress import PlainProgress, describe_progress
from tests.clocks import HandClock
from tests.indexer.helpers import CONFIG, write_corpus


class StillClock:
    def __init__(self) -> None:
        self.time_us = 0

    def now_us(self) -> int:
        return self.time_us

    def host_lead_us(self) -> int:
        return 0


def test_a_line_has_rate_and_time_left_and_does_not_count_what_an_earlier_life_did() -> None:
    assert (
        describe_progress("embedding", 300, 1000, 200, 2_000_000)
        == "embedding: 300 of 1,000 (30 %), 50/s, 14 s left"
    )
    assert (
        describe_progress("training", 2, 20, 0, 8_000_000)
        == "training: 2 of 20 (10 %), 0.25/s, 72 s left"
    )
    assert describe_progress("embedding", 0, 0, 0, 0) == "embedding: 0 of 0 (0 %), 0/s"


def test_plain_progress_says_something_at_start_soon_every_five_seconds_and_at_the_end() -> None:
    clock, out = StillClock(), io.StringIO()
    progress = PlainProgress(Console(file=out), clock)
    progress.start("embedding", 100, 40)
    for _ in range(6):
        clock.time_us += 2_000_000
        progress.advance(10)
    progress.advance(0)
    progress.note("done [all]")
    assert out.getvalue().splitlines() == [
        "embedding: 40 of 100 were done before",
        "embedding: 60 of 100 (60 %), 5/s, 8 s left",
        "embedding: 90 of 100 (90 %), 5/s, 2 s left",
        "embedding: 100 of 100 (100 %), 5/s",
        "done [all]",
    ]


def test_a_build_tells_each_step_at_its_begin_and_each_batch_of_passages(tmp_path: Path) -> None:
    told = mock.Mock()
    told.load.return_value = mock.Mock(encode=told.encode, dimension=16, fingerprint="m")
    told.encode.side_effect = lambda texts: np.full((len(texts), 16), np.nan)
    request = BuildRequest(
        corpus=write_corpus(tmp_path / "c.jsonl", 20), index_dir=tmp_path / "index"
    )
    with (
        mock.patch.object(indexer.build, "load_embedder", told.load),
        pytest.raises(ConfigError, match=r"row 0 \(passage 'doc-0'\) from the model m"),
    ):
        build_index(request, CONFIG, HandClock(), told)
    names = [name for name, *_ in told.mock_calls]
    assert names[0] == "start"
    assert names[names.index("load") - 1 :] == ["note", "load", "start", *["encode", "advance"] * 3]
