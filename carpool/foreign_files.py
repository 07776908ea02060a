"""Names files of formats that are not read here, each with the command that converts it."""

from __future__ import annotations

import re
from pathlib import Path

from carpool.errors import ConfigError

_NUMPY = 'python -c "import numpy as n; '
_BY_SUFFIX = {
    ".npz": (
        "an archive of arrays (.npz)",
        _NUMPY + "a = n.load('{0}'); print(a.files); n.save('{0}.npy', a[a.files[0]])\"",
    ),
    ".fvecs": (
        "vectors of TEXMEX (.fvecs)",
        _NUMPY + "a = n.fromfile('{0}', '<i4'); "
        "n.save('{0}.npy', a.reshape(-1, a[0] + 1)[:, 1:].view('<f4'))\"",
    ),
}
_BY_START = (
    (rb"\xff\xfe|\xfe\xff|[ -~]\0[ -~]\0", "UTF-16", "iconv -f UTF-16 -t UTF-8 {0} > {0}.jsonl"),
    (rb"\s*\[\s*(\{|\Z)", "one JSON array", "jq -c '.[]' {0} > {0}.jsonl"),
    (rb"\x1f\x8b", "compressed by gzip", "gzip -dc {0} > {0}.jsonl"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dc {0} > {0}.jsonl"),
    (rb"\xfd7zXZ", "compressed by xz", "xz -dc {0} > {0}.jsonl"),
    (rb"BZh[1-9]1AY&SY", "compressed by bzip2", "bzip2 -dc {0} > {0}.jsonl"),
    (rb"PK\x03\x04", "a zip archive", "unzip -p {0} > {0}.jsonl"),
    (
        rb"PAR1\x15",
        "Parquet",
        "python -c \"import pandas; pandas.read_parquet('{0}')"
        ".to_json('{0}.jsonl', orient='records', lines=True)\"",
    ),
)


def refuse_foreign(path: Path, start: bytes | None = None) -> None:
    """Raises `ConfigError` with the remedy for a file of a known foreign format.

    `start`: its first bytes, after decompression; None: they are read, which may raise `OSError`.
    """
    if start is None:
        with path.open("rb") as file:
            start = file.read(16)
    by_start = ((name, remedy) for pattern, name, remedy in _BY_START if re.match(pattern, start))
    if found := _BY_SUFFIX.get(path.suffix.lower()) or next(by_start, None):
        name, remedy = found
        raise ConfigError(
            f"{path} is {name}, which is not read here; convert it, and give the new file: "
            + remedy.format(path)
        )
