"""A file is opened with O_DIRECT or refused with a reason; it is never read from memory."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from carpool.disk import direct
from carpool.disk.direct import NoDirectReadError, open_direct
from tests.disk.helpers import open_files_under


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.seg"
    path.write_bytes(bytes(8192))
    return path


def test_a_file_on_a_disk_is_opened_with_o_direct(path: Path) -> None:
    try:
        descriptor = open_direct(path)
    except NoDirectReadError as error:
        pytest.skip(f"this file system {error}")
    flags = Path(f"/proc/self/fdinfo/{descriptor}").read_text().split("flags:")[1].split()[0]
    os.close(descriptor)
    assert int(flags, 8) & os.O_DIRECT


@pytest.mark.parametrize("call", ["open", "preadv"])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_a_refusal_at_open_or_at_read_is_no_io_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(direct, "IN_MEMORY", {})
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(OSError if number == errno.EIO else NoDirectReadError):
            open_direct(path)
    assert open_files_under(path.parent) == []


def test_a_file_that_is_not_there_is_an_error_of_the_system_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.seg"):
        open_direct(tmp_path / "nowhere.seg")
