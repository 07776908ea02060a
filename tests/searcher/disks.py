"""File systems without O_DIRECT."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest


def refuse_direct(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Makes the file system refuse O_DIRECT when a file is opened, or when it is read, as some
    do.
    """
    real_open, real_preadv, direct = os.open, os.preadv, set()

    def fake_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        file = real_open(path, flags, *rest, **named)
        if flags & os.O_DIRECT:
            direct.add(file)
        else:
            direct.discard(file)
        return file

    def fake_preadv(file: int, *rest: Any) -> int:
        if file in direct and at == "read":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(file, *rest)

    monkeypatch.setattr(os, "open", fake_open)
    monkeypatch.setattr(os, "preadv", fake_preadv)
