"""What is said while something long goes on."""

import io

from rich.console import Console

from indexer.progress import PlainProgress, describe_progress


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
