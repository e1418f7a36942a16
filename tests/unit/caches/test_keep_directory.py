"""The directory is ours alone, one server's at a time, and its file is replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from foveate.caches.keep_directory import FILE, KeepDirectory
from foveate.caches.kept_file import KeptFault
from foveate.core.errors import StartupError


def opened(path: Path) -> KeepDirectory:
    return KeepDirectory(path, bytes_max=1 << 20, seconds_max=1, made_by="us")


def put(directory: KeepDirectory, data: bytes) -> None:
    with directory.begin() as file:
        file.write(data)
    directory.commit()


def content(directory: KeepDirectory) -> bytes | None:
    fd = directory.open()
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read()


def test_it_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "keep"
    directory = opened(path)
    assert content(directory) is None
    assert directory.bytes == 0
    put(directory, b"one")
    assert content(directory) == b"one"
    assert directory.bytes == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.iterdir()} == {FILE: 0o600, "lock": 0o600}
    directory.close()


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    directory = opened(tmp_path / "keep")
    put(directory, b"old")
    with directory.begin() as file:
        file.write(b"half of the n")
    assert content(directory) == b"old"
    directory.close()  # as after a kill
    again = opened(tmp_path / "keep")
    assert content(again) == b"old"
    again.abandon()
    assert sorted(os.listdir(tmp_path / "keep")) == [FILE, "lock"]
    put(again, b"new")
    assert content(again) == b"new"
    assert (again.forget(), again.forget(), content(again)) == (True, False, None)
    again.close()


def test_two_servers_never_share_it(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(StartupError, match="in use by another server"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_one_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(StartupError, match=r"Others than its owner .* cannot be trusted"):
        opened(tmp_path)
    tmp_path.chmod(0o755)
    opened(tmp_path).close()


def test_another_user_s_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StartupError, match="belongs to another user"):
        opened(tmp_path)


def test_what_is_no_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"encoder_keep_dir.*File exists"):
        opened(tmp_path / "file")


def test_a_file_that_is_not_ours_alone_is_not_read(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    put(directory, b"one")
    (tmp_path / FILE).chmod(0o666)
    with pytest.raises(KeptFault, match="foreign"):
        directory.open()
    directory.forget()
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        directory.open()
    directory.forget()
    os.mkfifo(tmp_path / FILE, 0o600)
    with pytest.raises(KeptFault, match="foreign"):
        directory.open()
    directory.close()


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    directory = opened(tmp_path / "keep")
    target = tmp_path / "elsewhere"
    target.write_bytes(b"theirs")
    for name in (FILE, f"{FILE}.new"):
        (tmp_path / "keep" / name).symlink_to(target)
    put(directory, b"ours")
    assert target.read_bytes() == b"theirs"
    assert content(directory) == b"ours"
    directory.close()
