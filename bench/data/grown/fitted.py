"""The questions of a grown set that chose its spread. They must not be asked of the set."""

from __future__ import annotations

from pathlib import Path

import msgspec

from carpool.errors import ConfigError

GROWN_NAME = "grown.json"
FITTED_PART = 3
"""At most one question in three chose a spread, the last ones; the others judge the set."""


class _Grown(msgspec.Struct):
    files: dict[str, str]


def fitted_count(questions: Path, rows: int) -> int:
    """Returns how many of the `rows` in the file `questions`, the last ones, must not be asked.

    0 for a file that no `grown.json` beside it lists. Raises `ConfigError` where `grown.json`
    cannot be read.
    """
    path = questions.parent / GROWN_NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Grown)
    except FileNotFoundError:
        return 0
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"cannot read {path} ({error}), which says that the questions are of a grown set: "
            "grow the set again, or copy the questions to another folder if they are others"
        ) from error
    return rows // FITTED_PART if questions.name in found.files else 0
