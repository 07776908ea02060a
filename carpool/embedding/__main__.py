"""`python -m carpool.embedding MODEL_FOLDER OUT_FOLDER` exports a model for ONNX Runtime."""

import sys
from pathlib import Path

from carpool.embedding.export import export

try:
    export(Path(sys.argv[1]), Path(sys.argv[2]))
except Exception as error:
    sys.exit(" ".join(f"{type(error).__name__}: {error}".split())[:500])
