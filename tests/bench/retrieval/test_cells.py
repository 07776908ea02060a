"""What a run leaves on disk, and going on with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.retrieval.cells import Cell, CellFile, OracleCell
from bench.retrieval.oracles import OracleBytes
from carpool.errors import ConfigError


def cell(contestant: str = "a", *, seed: int = 0, settings_id: str = "s", error: str = "") -> Cell:
    return Cell(
        settings_id=settings_id,
        seed=seed,
        window=20,
        contestant=contestant,
        status="failed",
        error=error,
    )


def test_lines_come_back_and_the_last_of_a_cell_wins(tmp_path: Path) -> None:
    file = CellFile(tmp_path / "cells.jsonl")
    oracle = OracleCell(
        settings_id="s",
        seed=0,
        window=20,
        name="o",
        queries=5,
        found=OracleBytes(bytes_read=1, kept_bytes=0),
    )
    for line in (
        cell(error="first"),
        cell("b"),
        oracle,
        cell(error="second"),
        cell(settings_id="other"),
    ):
        file.append(line)
    assert file.read("s") == [cell(error="second"), cell("b"), oracle]
    assert CellFile(tmp_path / "none.jsonl").read("s") == []


def test_a_line_that_was_cut_is_dropped_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    CellFile(path).append(cell("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert CellFile(path).read("s") == [cell("a")]
    CellFile(path).append(cell("b"))
    assert CellFile(path).read("s") == [cell("a"), cell("b")]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_bytes(b'{"type":"cell","seed":"x"}\n')
    CellFile(path).append(cell())
    with pytest.raises(ConfigError, match=r"cells\.jsonl:1: .*give another --out"):
        CellFile(path).read("s")
