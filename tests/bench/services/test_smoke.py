"""Each benchmark of the services from end to end, small: real services and real brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.cpu import COMPILERS
from bench.core.stack import SERVICES
from bench.data.evaluation import CLAIMS, CORPUS, EVIDENCE
from bench.services import claims, overhead
from bench.services.options import ClaimsOptions, OverheadOptions
from carpool.embedding.hashing import HashingEmbedder
from carpool.errors import ConfigError
from carpool.kafka.embedded import find_broker_binary
from tests.bench.helpers import write_embedded

pytestmark = pytest.mark.slow

DIMENSION = 64
CHECKOUT = Path(overhead.__file__).parents[2]
WORDS = "river castle comet violin harbour desert engine orchard glacier market temple canal"


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """Passages of three words each, and claims that repeat one."""
    try:
        find_broker_binary()
    except ConfigError as error:
        pytest.skip(str(error))
    folder = tmp_path / "data"
    folder.mkdir()
    words, generator = WORDS.split(), np.random.default_rng(3)
    passages = [
        " ".join(generator.choice(words, 3, replace=False)) + f" number{row}" for row in range(240)
    ]
    texts = {CORPUS: passages, CLAIMS: passages[::20]}
    for (name, found), prefix in zip(texts.items(), "pc", strict=True):
        title = {"title": ""} if name == CORPUS else {}
        rows = [{"id": f"{prefix}-{row}", "text": text} | title for row, text in enumerate(found)]
        write_embedded(folder, name, rows, HashingEmbedder(DIMENSION).encode(found))
    (folder / EVIDENCE).write_text("".join(f"c-{row}\tp-{row * 20}\n" for row in range(12)))
    return {
        "data": folder,
        "work": tmp_path / "work",
        "nlist": 12,
        "model": f"hashing:{DIMENSION}",
        "settings": ["searcher.direct_io=auto"],
        "json_file": tmp_path / "report.json",
    }


def test_claims_are_found_as_faiss_finds_them(corpus: dict[str, Any]) -> None:
    assert claims.run(ClaimsOptions(**corpus))
    report = json.loads(corpus["json_file"].read_text())
    results = report["results"]
    assert results["retrievals"]["answered"] == 12
    assert results["ids"]["same"] + results["ids"]["tied"] == 12
    assert results["evidence_exact"] == 1.0
    assert report["index"]["nlist"] == 12
    files = {file["name"] for file in report["data"]}
    assert files >= {f"{CORPUS}.jsonl.gz", f"{CLAIMS}.jsonl.gz", EVIDENCE}


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize(
    ("other_revision", "ids"),
    [
        (None, {"no LLM": 0, "3 passages": 420}),
        (CHECKOUT, {"15 passages": 1_560, "other revision, 15 passages": 1_560}),
    ],
)
def test_overhead_measures_each_side_with_each_size_of_prompt(
    tmp_path: Path, other_revision: Path | None, ids: dict[str, int]
) -> None:
    options = OverheadOptions(
        contestant=["exactly-once-1"],
        rate_per_s=[20.0],
        passages=[0, 3] if other_revision is None else [15],
        other_revision=other_revision,
        seconds=4,
        warm_up_s=1,
        work=tmp_path,
        json_file=tmp_path / "overhead.json",
    )
    assert overhead.run(options)
    loads = json.loads((tmp_path / "overhead.json").read_text())["results"]["exactly-once-1"]
    sides = loads["20 a second"]
    assert sides.keys() == {"bare hops", *ids}
    for side, result in sides.items():
        assert result["prompt_ids"] == pytest.approx(ids.get(side, 0), rel=0.1)
        assert result["accounting"]["answered"] == result["total_ms"]["count"] == 80
        own = SERVICES if side in ids else ("hops",)
        assert result["cpu_ms"].keys() == {*own, "broker"}
        assert result["cpu_ms_a_question"] == pytest.approx(sum(result["cpu_ms"].values()))
        assert COMPILERS in result["not_counted_ms"]
