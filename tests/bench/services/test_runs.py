"""Both benchmarks from end to end on a few passages: real services, an embedded broker, hashed
words for an embedder.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.data.evaluation import CLAIMS, CORPUS, EVIDENCE, TRAFFIC
from bench.services import commands
from carpool.embedding import HashingEmbedder
from carpool.errors import ConfigError
from carpool.kafka.embedded import find_broker_binary
from tests.bench.helpers import write_embedded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DIMENSION = 64
WORDS = [
    "river",
    "castle",
    "comet",
    "violin",
    "harbour",
    "desert",
    "engine",
    "orchard",
    "glacier",
    "market",
    "temple",
    "canal",
]


@pytest.fixture(scope="module", autouse=True)
def _broker_is_here() -> None:
    try:
        find_broker_binary()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Passages of three words each, claims that repeat one, and questions of two words."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(3)
    passages = [
        " ".join(generator.choice(WORDS, 3, replace=False)) + f" number{row}" for row in range(240)
    ]
    claims = passages[::20]
    questions = [" ".join(generator.choice(WORDS, 2, replace=False)) for _ in range(60)]
    for name, prefix, texts in (
        (CORPUS, "p", passages),
        (CLAIMS, "c", claims),
        (TRAFFIC, "q", questions),
    ):
        title = {"title": ""} if name == CORPUS else {}
        rows = [{"id": f"{prefix}-{row}", "text": text} | title for row, text in enumerate(texts)]
        write_embedded(folder, name, rows, HashingEmbedder(DIMENSION).encode(texts))
    (folder / EVIDENCE).write_text(
        "".join(f"c-{row}\tp-{row * 20}\n" for row in range(len(claims)))
    )
    return folder


@pytest.fixture
def common(data: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> commands.Common:
    return commands.Common(
        data=data,
        bootstrap=None,
        index=None,
        work=tmp_path / "work",
        nlist=12,
        model=f"hashing:{DIMENSION}",
        settings=("searcher.direct_io=auto",),
        seed=0,
        limit=None,
        json_file=tmp_path / "figures.json",
    )


def test_claims_are_found_as_faiss_finds_them_and_answered_by_the_stand_in(
    common: commands.Common,
) -> None:
    options = commands.ClaimsOptions(
        kind="text", nprobe=4, rate_per_s=100, generate=5, llm_url=commands.STAND_IN, llm_model=""
    )
    assert commands.claims(common, options)
    assert common.json_file is not None
    report = json.loads(common.json_file.read_text())
    results = report["results"]
    assert results["retrievals"]["answered"] == 12
    assert results["ids"]["same"] + results["ids"]["tied"] == 12
    assert results["evidence_exact"] == 1.0
    assert (results["generated"]["books"]["answered"], results["generated"]["valid_citations"]) == (
        5,
        5,
    )
    assert results["generated"]["models"] == [commands.STAND_IN_MODEL]
    assert report["index"]["nlist"] == 12
    assert {file["name"] for file in report["data"]} >= {
        f"{CORPUS}.jsonl.gz",
        f"{CLAIMS}.jsonl.gz",
        EVIDENCE,
    }


def test_traffic_comes_back_once_and_records_agree_with_metrics(common: commands.Common) -> None:
    options = commands.TrafficOptions(
        text_rate_per_s=100,
        vector_rate_per_s=200,
        arrivals="poisson",
        warm_up=5,
        budget_share=0.5,
        footprint=True,
    )
    commands.traffic(common, options)
    assert common.json_file is not None
    report = json.loads(common.json_file.read_text())
    for run in report["results"]["runs"]:
        assert run["retrievals"]["answered"] == run["stages_ms"]["total"]["count"] == 60
        assert run["records_agree_with_metrics"]
        assert run["counters"]["ram"] + run["counters"]["ssd"] > 0
        assert {
            "kafka_wait",
            "window_wait",
            "group",
            "queue_search",
            "load",
            "search",
            "passages",
        } <= run["stages_ms"].keys()
    # How much memory a process takes beside a budget of a few KiB is noise: what must hold here is
    # the rest.
    broken = [promise for promise, held in report["promises"].items() if not held]
    assert all("within budget" in promise for promise in broken), broken
