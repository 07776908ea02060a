"""An export gives the vectors of torch, however the model is configured."""

import gzip
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from carpool.embedding import EmbeddingSettings, loader, onnx_embedder
from carpool.embedding.export import export, export_name
from carpool.embedding.files import find_model, model_fingerprint, prompt_of
from carpool.embedding.loader import load_embedder
from carpool.embedding.torch_embedder import TorchEmbedder, load_model
from carpool.errors import ConfigError
from indexer.settings import IndexerConfig, IndexerSettings
from searcher.local import LocalSearcher
from tests.embedding.test_embedders import needs_minilm
from tests.indexer.helpers import build, write_corpus

# torch's exporter warns of itself and of each constant that it traces.
pytestmark = [needs_minilm, pytest.mark.filterwarnings("ignore")]
QUIET = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "XDG_CACHE_HOME")
TEXTS = ("A lower case text", "É 漢字 нет", "shout " * 40, "", "Padding, and MORE Padding", "one")


def a_model(folder: Path, pooling: str, with_head: bool = False, **transformer: Any) -> Path:
    """Saves a small model with random weights and MiniLM's tokenizer."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    bare, minilm = folder / "bare", find_model(EmbeddingSettings())
    shape = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    BertModel(shape).save_pretrained(bare)
    for file in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(minilm / file, bare)
    prompts, dtype = transformer.pop("prompts", None), transformer.pop("dtype", "float32")
    truncate_dim = transformer.pop("truncate_dim", None)
    modules: list[Any] = [
        models.Transformer(str(bare), **transformer),
        models.Pooling(32, pooling_mode=pooling),
    ]
    if with_head:
        modules += [models.Dense(32, 16), models.Normalize()]
    default = next(iter(prompts), None) if prompts else None
    model = SentenceTransformer(
        modules=modules, prompts=prompts, default_prompt_name=default, truncate_dim=truncate_dim
    )
    model.to("cpu", getattr(torch, dtype)).save(str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize(
    "form",
    [
        {"pooling": "cls", "max_seq_length": 16, "do_lower_case": True},
        {"pooling": "max", "with_head": True, "prompts": {"query": "Question: "}},
        {"pooling": "mean", "prompts": {"other": "x: ", "query": "q: ", "document": "a passage: "}},
        {"pooling": "lasttoken", "processor_kwargs": {"padding_side": "left"}},
        {"pooling": "mean", "with_head": True, "dtype": "float16", "truncate_dim": 8},
        {"pooling": "cls", "dtype": "bfloat16"},
    ],
    ids=lambda form: "-".join(form),
)
def test_an_export_and_torch_give_the_vectors_of_sentence_transformers(
    form: dict[str, Any], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = a_model(tmp_path, **form)
    settings = EmbeddingSettings(model=str(folder), threads=1)
    export(folder, folder / "onnx")
    exact = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    for are_passages, encode in ((False, exact.encode_query), (True, exact.encode_document)):
        expected = encode(list(TEXTS), normalize_embeddings=True)
        prompt = prompt_of(folder, are_passages=are_passages)
        in_torch = TorchEmbedder(load_model(folder, settings), fingerprint="", prompt=prompt)
        exported = load_embedder(settings, are_passages=are_passages)
        assert type(exported).__name__ == "OnnxEmbedder"
        for embedder in (exported, in_torch):
            assert embedder.dimension == expected.shape[1]
            assert np.allclose(embedder.encode(TEXTS), expected, atol=1e-5)


def test_passages_and_questions_reach_the_tokenizer_with_their_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, read = a_model(tmp_path, "mean"), onnx_embedder.Tokenizer.from_str
    prompts = {"query": "query: ", "document": "", "passage": "passage: "}
    (model / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    export(model, model / "onnx")
    tokenizers: list[Any] = []

    def opened(text: str) -> Any:
        tokenizers.append(mock.Mock(wraps=read(text)))
        return tokenizers[-1]

    monkeypatch.setattr(onnx_embedder, "Tokenizer", mock.Mock(from_str=opened))
    settings = EmbeddingSettings(model=str(model), threads=1)
    config = IndexerConfig(embedding=settings, indexer=IndexerSettings(threads=1))
    build(write_corpus(tmp_path / "c.jsonl", 3), tmp_path / "index", config, nlist=1)
    with LocalSearcher(tmp_path / "index", embedding=settings) as searcher:
        searcher.search(["Who built it?"])
    (passages,), (questions,) = (one.encode_batch.call_args.args for one in tokenizers)
    assert len(passages) == 3 and all(text.startswith("passage: ") for text in passages)
    assert questions == ["query: Who built it?"]


def test_a_model_without_a_pad_token_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(tmp_path, "mean")
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token": None}))
    monkeypatch.setattr(loader, "export_in_child", export)
    with pytest.raises(ConfigError, match="set `pad_token` in tokenizer_config"):
        load_embedder(EmbeddingSettings(model=str(model)))


@pytest.mark.data
def test_minilm_finds_the_same_ten_passages_in_both_runtimes() -> None:
    data = Path(os.environ["CARPOOL_DATA"])
    with gzip.open(data / "wikipedia-16k.jsonl.gz") as file:
        passages = [json.loads(next(file))["text"] for _ in range(64)]
    with gzip.open(data / "queries-nq.jsonl.gz") as file:
        questions = [json.loads(next(file))["text"] for _ in range(20)]
    settings = EmbeddingSettings()
    exact = TorchEmbedder(load_model(find_model(settings), settings), fingerprint="")
    best, vectors = [], []
    for embedder in (load_embedder(settings), exact):
        rows = embedder.encode([*passages, *questions])
        vectors.append(rows)
        best.append(np.argsort(-rows[64:] @ rows[:64].T, axis=1)[:, :10])
    assert (vectors[0] * vectors[1]).sum(axis=1).min() > 0.99999
    assert np.array_equal(best[0], best[1])


def test_a_grouper_loads_no_torch_even_where_the_export_is_damaged_and_writes_nothing_else(
    tmp_path: Path,
) -> None:
    model, home = a_model(tmp_path, "mean"), tmp_path / "home"
    place = home / ".cache" / "carpool" / export_name(model_fingerprint(model))
    place.parent.mkdir(parents=True)
    place.write_bytes(b"half a fi")
    code = (
        "import sys, grouper.build, grouper.service\n"
        "from carpool.embedding.loader import EmbeddingSettings, load_embedder\n"
        f"load_embedder(EmbeddingSettings(model={str(model)!r})).encode(['a question'])\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'onnx', 'sklearn'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        # In CI, ONNX Runtime would write no id of the machine, whatever we do.
        env={name: value for name, value in os.environ.items() if name not in QUIET}
        | {"HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert "is damaged" in done.stderr and "exported again" in done.stderr
    assert [file for file in home.rglob("*") if file.is_file()] == [place]


def test_a_model_that_cannot_be_exported_is_embedded_by_torch_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(find_model(EmbeddingSettings()) / "tokenizer.json"))
    static = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device="cpu")
    static.save(str(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loader, "export_in_child", export)
    with caplog.at_level(logging.WARNING):
        embedder = load_embedder(EmbeddingSettings(model=str(tmp_path / "model")))
    assert isinstance(embedder, TorchEmbedder)
    assert np.isclose(np.linalg.norm(embedder.encode(["x y"])), 1)
    assert "is embedded by torch" in caplog.text
