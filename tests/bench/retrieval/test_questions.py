"""Which questions a run may ask: those of each index's own file, and none that its grown set was
fitted with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.data.grown.fitted import fitted_count
from bench.micro.disk import measure_disk
from bench.retrieval import disks
from bench.retrieval.blocks import Run, Tell
from bench.retrieval.cells import CELLS_NAME, Cell, CellFile
from bench.retrieval.command import Wishes, search
from bench.retrieval.dataset import open_view
from bench.retrieval.disks import SUSTAINED, measure_block, slice_reads
from bench.retrieval.plan import Plan
from bench.retrieval.questions import question_paths, read_asked
from carpool.errors import ConfigError
from tests.bench.retrieval.conftest import unit_rows
from tests.bench.retrieval.test_runs import plan, wishes


def grown_set(
    folder: Path, seed: int, *, questions: int = 90, fitted: int = 0, listed: str = "queries.npy"
) -> Path:
    """The questions of a grown set, and what it says of itself."""
    folder.mkdir()
    np.save(folder / "queries.npy", unit_rows(np.random.default_rng(seed), questions))
    (folder / "grown.json").write_text(
        json.dumps({"files": {listed: "00"}, "questions_fitted": fitted, "seed": 0})
    )
    return folder / "queries.npy"


@pytest.mark.parametrize(("fitted", "left_out"), [(0, 30), (20, 30), (40, 40)])
def test_what_a_grown_set_was_fitted_with_is_never_asked(
    tmp_path: Path, fitted: int, left_out: int
) -> None:
    """A set with a given spread says 0 and was fitted in another run; a third is what fitting
    takes.
    """
    path = grown_set(tmp_path / "set", 1, fitted=fitted)
    asked = read_asked([path])
    assert asked.left_out == asked.files[0].left_out == left_out
    assert np.array_equal(
        asked.vectors, read_asked([_copied(path, tmp_path)]).vectors[: 90 - left_out]
    )


def _copied(path: Path, folder: Path) -> Path:
    (folder / "copy").mkdir(exist_ok=True)
    (folder / "copy" / path.name).write_bytes(path.read_bytes())
    return folder / "copy" / path.name


def test_questions_of_no_grown_set_are_all_asked_and_a_damaged_description_is_an_error(
    tmp_path: Path,
) -> None:
    assert read_asked([grown_set(tmp_path / "other", 1, listed="others.npy")]).left_out == 0
    path = grown_set(tmp_path / "damaged", 1)
    (path.parent / "grown.json").write_text('{"files": {}')
    with pytest.raises(ConfigError, match=r"cannot read .*grown\.json .* grow the set again"):
        fitted_count(path, 90)


@pytest.mark.slow
def test_each_seed_asks_the_file_of_its_index_and_the_report_says_what_was_left_out(
    tmp_path: Path, tiny_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (grown_set(tmp_path / "a", 1), grown_set(tmp_path / "b", 2))
    chosen = plan(
        tmp_path,
        tiny_index,
        indexes=(tiny_index, tiny_index),
        seeds=2,
        contestants=("faiss-memory",),
    )
    assert search(
        chosen, Wishes(data=None, questions=files, baseline=None, resume=False, plot=False), {}
    )
    for seed, file in enumerate(files):
        may = {row.tobytes() for row in read_asked([file]).vectors}
        asked = {
            row.tobytes() for row in np.load(tmp_path / "out" / f"seed-{seed}" / "queries.npy")
        }
        assert asked == may and len(asked) == 60
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [file["left_out"] for file in report["questions"]] == [30, 30]
    assert "60 questions (30 of a/queries.npy, 30 of b/queries.npy)" in capsys.readouterr().out


def test_too_few_questions_or_files_are_refused(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    asked = [read_asked([grown_set(tmp_path / "set", 1)])]
    with pytest.raises(
        ConfigError, match="60 distinct questions beside 30 that the grown set was fitted with"
    ):
        Run(plan(tmp_path, tiny_index, queries=61), asked, Tell())
    with pytest.raises(ConfigError, match="--questions is given 2 times and --index 3 times"):
        question_paths([questions, questions], 3, None, {})
    from bench.retrieval.measure import OpenLoopPlan

    with pytest.raises(
        ConfigError, match=r"of 500 questions or more, and there are 60.*--no-open-loop"
    ):
        Run(plan(tmp_path, tiny_index, open_loop=OpenLoopPlan()), asked, Tell())


@pytest.mark.slow
def test_cells_of_two_revisions_are_told_by_row_and_kept_in_each_cell(
    tmp_path: Path,
    tiny_index: Path,
    questions: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    from bench.core.machine import Revision
    from bench.retrieval import blocks

    def at(commit: str, is_modified: bool, chosen: Plan, *, resume: bool) -> str:
        monkeypatch.setattr(
            blocks, "this_revision", lambda: Revision(commit=commit, is_modified=is_modified)
        )
        assert search(chosen, wishes(questions, resume=resume), {})
        return " ".join(capsys.readouterr().out.split())

    one = plan(tmp_path, tiny_index, contestants=("faiss-memory",))
    assert "REVISIONS" not in at("a" * 40, False, one, resume=False)
    both = plan(tmp_path, tiny_index, contestants=("faiss-memory", "faiss-ondisk"))
    said = at("b" * 40, True, both, resume=True)
    assert "CELLS COME FROM 2 REVISIONS OF THE SOURCE (aaaaaaaaa, bbbbbbbbb modified)" in said
    assert (
        "windows of 10, faiss-memory: aaaaaaaaa windows of 10, faiss-ondisk: bbbbbbbbb modified"
        in said
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["revisions"] == ["aaaaaaaaa", "bbbbbbbbb modified"]
    cells = {line["contestant"]: line for line in report["lines"] if line["type"] == "cell"}
    assert cells["faiss-memory"]["revision"] == {"commit": "a" * 40, "is_modified": False}
    assert cells["faiss-ondisk"]["revision"]["is_modified"] is True


@pytest.mark.slow
def test_the_disk_is_measured_before_amid_and_after_a_block(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    chosen = plan(tmp_path, tiny_index, contestants=("faiss-memory", "faiss-ondisk"))
    asked = [read_asked([questions])]
    chosen.out.mkdir()
    Run(chosen, asked, Tell()).run()
    kinds = [
        json.loads(line)["type"] for line in (chosen.out / CELLS_NAME).read_text().splitlines()
    ]
    assert [kind for kind in kinds if kind != "oracle"] == ["disk", "cell", "disk", "cell", "disk"]


def test_slices_of_clusters_are_measured_where_there_are_any(tiny_index: Path) -> None:
    view = open_view(tiny_index)
    assert slice_reads(view) == ()  # no cluster is cut
    parts = slice_reads(view, 4096)
    assert {part.size_bytes for part in parts} == {4096}
    assert sum(part.size_bytes for part in parts) == sum(read.size_bytes for read in view.reads)


def test_the_best_of_a_block_is_measured_again_for_longer(
    tiny_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations_s: list[float] = []
    measure = measure_disk

    def noting(*reads: Any, **how: Any) -> Any:
        durations_s.append(how["duration_s"])
        return measure(*reads, **how)

    monkeypatch.setattr(disks, "measure_disk", noting)
    try:
        block = measure_block(
            open_view(tiny_index),
            settings_id="s",
            seed=0,
            window=20,
            duration_s=0.01,
            into_bytes=1 << 20,
        )
    except ConfigError as error:
        pytest.skip(str(error))
    assert block.slices is None
    for again, tried in ((block.sustained, block.figures), (block.spread_sustained, block.spread)):
        assert again is not None
        assert tried is not None
        assert again.depth == max(tried.rates, key=lambda rate: rate.bytes_per_s).depth
    assert durations_s == [0.01, 0.01, 0.01 * SUSTAINED, 0.01 * SUSTAINED]


def test_folders_that_cannot_be_written_are_errors_that_say_so(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    (tmp_path / "file").write_text("")
    for out, message in (("file", "is a file"), ("file/under", "cannot write .*under")):
        with pytest.raises(ConfigError, match=message):
            search(plan(tmp_path, tiny_index, out=tmp_path / out), wishes(questions), {})
    (tmp_path / "out" / "seed-0" / "queries.npy").mkdir(
        parents=True
    )  # as a full disk: it cannot be saved
    with pytest.raises(ConfigError, match=r"cannot write .*seed-0 .*make room"):
        search(plan(tmp_path, tiny_index), wishes(questions), {})
    (tmp_path / "cells.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*cells\.jsonl"):
        CellFile(tmp_path / "cells.jsonl").append(
            Cell(settings_id="s", seed=0, window=1, contestant="a", status="ok")
        )


def test_options_that_cannot_be_are_refused(
    tmp_path: Path, tiny_index: Path, questions: Path
) -> None:
    wished = Wishes(data=None, questions=(questions,), baseline="nosuch", resume=False, plot=False)
    with pytest.raises(
        ConfigError, match=r"--baseline nosuch: .* faiss-memory, faiss-ondisk, faiss-ondisk-batched"
    ):
        search(plan(tmp_path, tiny_index), wished, {})
    for arguments in (["search", "--top-k", "101"],):
        told = CliRunner().invoke(app, arguments)
        assert (told.exit_code, arguments[1] in told.output) == (2, True)
