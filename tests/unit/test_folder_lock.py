"""A folder's lock where the file system has none."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from replay_server.rl.folder_lock import alone_in


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_that_cannot_be_locked_is_worked_in_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with alone_in(tmp_path):
        told = capsys.readouterr().err
    assert f"{tmp_path} cannot be locked ({os.strerror(code)})" in told


def test_a_disk_that_fails_is_no_folder_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), alone_in(tmp_path):
        pass
