"""A grown set: the same bytes for the same seed, accepted only when it behaves as the real one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.core.progress import silent
from bench.data.evaluation import EvaluationData, find_data, read_vectors
from bench.data.grown import grow as growing
from bench.data.grown.fitted import fitted_count
from bench.data.grown.grow import RefusedError, grow
from bench.data.grown.options import GrowOptions
from bench.data.grown.output import GrownSet
from bench.data.grown.recipe import draw
from bench.data.grown.sources import Sources, load_sources
from carpool.embedding import EmbeddingSettings, HashingEmbedder
from carpool.errors import ConfigError
from indexer.corpus import file_sha256
from tests.bench.helpers import write_embedded

DIMENSION = 48
HASHING = EmbeddingSettings(model=f"hashing:{DIMENSION}")
PASSAGES = 1500
ROWS = 3000
SPREAD = 0.35
"""What fits these passages."""
QUESTIONS = 900


def _sentence(random: np.random.Generator, subject: int) -> str:
    """Words of a subject and of everybody's, so that passages of a subject are near each other."""
    own = [f"w{subject}x{word}" for word in random.integers(0, 12, 5)]
    common = [f"common{word}" for word in random.integers(0, 40, 3)]
    return " ".join(["The", *own, *common]) + "."


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EvaluationData:
    """A small folder of evaluation data: texts of 60 subjects, embedded by hashing their words."""
    folder = tmp_path_factory.mktemp("data")
    random, embedder = np.random.default_rng(7), HashingEmbedder(DIMENSION)
    passages = []
    for number in range(PASSAGES):
        subject = int(random.integers(60))
        text = " ".join(_sentence(random, subject) for _ in range(random.integers(1, 5)))
        passages.append({"id": f"p{number}", "title": f"Subject {subject}, {number}", "text": text})
    texts = [f"{passage['title']}. {passage['text']}" for passage in passages]
    write_embedded(folder, "wikipedia-16k", passages, embedder.encode(texts))
    for name in ("queries-nq", "queries-hotpotqa"):
        questions = [
            {"id": f"{number}", "text": _sentence(random, int(random.integers(60)))}
            for number in range(QUESTIONS // 2)
        ]
        write_embedded(
            folder, name, questions, embedder.encode([question["text"] for question in questions])
        )
    return EvaluationData(folder=folder)


@pytest.fixture(scope="module")
def sources(data: EvaluationData, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    cache = tmp_path_factory.mktemp("cache")
    return load_sources(data, sentences=True, embedding=HASHING, cache=cache, tell=silent)


def read_grown(folder: Path) -> GrownSet:
    return msgspec.json.decode((folder / "grown.json").read_bytes(), type=GrownSet)


def _options(tmp_path: Path, **changes: object) -> GrowOptions:
    options = GrowOptions(
        out=tmp_path / "set",
        rows=ROWS,
        seed=3,
        cache=tmp_path / "cache",
        model=HASHING.model,
        spread=SPREAD,
    )
    return msgspec.structs.replace(options, **changes)


@pytest.fixture(scope="module")
def grown(data: EvaluationData, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GrownSet]:
    folder = tmp_path_factory.mktemp("grown")
    return folder / "set", grow(_options(folder), data, silent)


def test_an_accepted_set_is_whole_and_says_how_it_was_made(
    grown: tuple[Path, GrownSet], data: EvaluationData
) -> None:
    folder, found = grown
    assert read_grown(folder) == found
    assert found.acceptance.holds()
    assert {path.name for path in folder.iterdir()} == {*found.files, "grown.json"}
    assert all(file_sha256(folder / name, "file") == sha256 for name, sha256 in found.files.items())
    assert found.sentences > PASSAGES
    assert not folder.with_name(folder.name + ".partial").exists()


def test_its_questions_are_the_real_ones_and_no_document_is_one(
    grown: tuple[Path, GrownSet], data: EvaluationData
) -> None:
    queries = np.load(grown[0] / "queries.npy", allow_pickle=False)
    real = np.concatenate(
        [read_vectors(data.vectors_path(name)) for name in ("queries-nq", "queries-hotpotqa")]
    )
    assert queries.dtype == np.float32
    assert len(queries) == len(np.unique(queries, axis=0))
    real /= np.linalg.norm(real, axis=1, keepdims=True)
    assert {row.tobytes() for row in queries} == {row.tobytes() for row in real}
    judged = grown[1].questions_judged
    assert judged + fitted_count(grown[0] / "queries.npy", len(queries)) <= len(queries)


def test_the_command_gives_the_same_bytes_for_the_same_seed_and_says_what_it_accepted(
    grown: tuple[Path, GrownSet], data: EvaluationData, tmp_path: Path
) -> None:
    arguments = _arguments(tmp_path, data, spread=SPREAD)
    model = ["--seed", "3", "--model", HASHING.model, "--cache", str(tmp_path / "cache")]
    said = CliRunner().invoke(app, [*arguments, *model])
    assert said.exit_code == 0, said.output
    assert "accepted" in said.output
    assert read_grown(tmp_path / "set").files == grown[1].files
    assert fitted_count(tmp_path / "set" / "queries.npy", 9) == 3
    assert fitted_count(tmp_path / "set" / "other.npy", 9) == 0


def test_every_document_is_made_of_the_pieces_that_its_line_names(
    grown: tuple[Path, GrownSet], sources: Sources
) -> None:
    folder, found = grown
    vectors = np.load(folder / "vectors.npy", allow_pickle=False)
    lines = (folder / "corpus.jsonl").read_bytes().splitlines()
    assert len(lines) == len(vectors)
    for start, stop in found.recipe.chunks():
        draws = draw(sources, found.recipe, start, stop)
        for offset in range(0, len(draws.passage), 97):
            passage = int(draws.passage[offset])
            towards, away = int(draws.towards_passage[offset]), int(draws.away_passage[offset])
            assert towards != away
            assert {towards, away} <= set(sources.neighbours[passage].tolist())
            owners = [(draws.own, passage), (draws.towards, towards), (draws.away, away)]
            for piece, owner in owners:
                assert sources.first_piece[owner] <= piece[offset] < sources.first_piece[owner + 1]
            own = float(draws.own_weight[offset])
            direction = (
                (1 - own) * sources.passages()[passage]
                + own * sources.pieces[draws.own[offset]]
                + float(draws.step[offset])
                * (sources.pieces[draws.towards[offset]] - sources.pieces[draws.away[offset]])
            )
            expected = direction / np.linalg.norm(direction)
            assert vectors[start + offset] == pytest.approx(expected, abs=1e-3)
            document = msgspec.json.decode(lines[start + offset])
            assert document["id"] == f"grown-{start + offset}"
            assert document["title"] == sources.titles[passage]
            assert repr(sources.titles[towards]) in document["text"]
            assert repr(sources.titles[away]) in document["text"]


def test_what_does_not_behave_as_the_real_set_is_refused_with_the_table_and_leaves_nothing(
    data: EvaluationData, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="nothing was written") as refused:
        grow(_options(tmp_path, spread=40.0), data, silent)
    assert not refused.value.acceptance.holds()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    said = CliRunner().invoke(app, [*_arguments(tmp_path, data, spread=40.0), "--no-sentences"])
    assert said.exit_code == 1
    assert "recall@10 at nprobe 32" in said.output
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_what_cannot_be_grown_is_said_before_any_work(
    data: EvaluationData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="ask for 1000 or more"):
        grow(_options(tmp_path, rows=500), data, silent)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "something").touch()
    with pytest.raises(ConfigError, match="is there already"):
        grow(_options(tmp_path), data, silent)
    with pytest.raises(ConfigError, match="have no embeddings/wikipedia-16k"):
        grow(
            _options(tmp_path, out=tmp_path / "new"),
            EvaluationData(folder=tmp_path),
            silent,
        )
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(growing.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match="make room"):
        grow(_options(tmp_path, out=tmp_path / "new"), data, silent)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.data
@pytest.mark.long
def test_a_set_grown_from_the_real_data_is_accepted(tmp_path: Path) -> None:
    options = GrowOptions(out=tmp_path / "set", rows=24_000, seed=1, sentences=False)
    assert grow(options, find_data(None, os.environ), silent).acceptance.holds()


def _arguments(tmp_path: Path, data: EvaluationData, *, spread: float) -> list[str]:
    given = {
        "--rows": ROWS,
        "--out": tmp_path / "set",
        "--data": data.folder,
        "--spread": repr(spread),
    }
    return ["data", *(str(word) for pair in given.items() for word in pair)]
