"""The rotated file: its room is bounded, no line is cut in two, and who else moves it does not lose us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foveate.observe.line_file import LineFile, rotated

LINE = b"x" * 99 + b"\n"


def opened(path: Path, *, bytes_max: int = 1000, keep_files: int = 2) -> LineFile:
    made = LineFile(path, bytes_max=bytes_max, keep_files=keep_files)
    made.open()
    return made


def numbered(first: int, last: int) -> list[bytes]:
    return [f"{number:099}\n".encode() for number in range(first, last)]


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_it_takes_no_more_than_its_room_and_keeps_the_newest(tmp_path: Path, at_once: int) -> None:
    path = tmp_path / "log"
    file = opened(path)
    for start in range(0, 100, at_once):
        part = numbered(start, min(start + at_once, 100))
        assert file.append(part) == (len(part), None)
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 3 * 1000
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    kept = b"".join(rotated(path, number).read_bytes() for number in (2, 1, 0))
    assert kept == b"".join(numbered(70, 100))


def test_without_predecessors_it_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = opened(path, keep_files=0)
    file.append(numbered(0, 15))
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
    assert path.read_bytes() == b"".join(numbered(10, 15))


def test_a_line_longer_than_the_file_has_one_to_itself(tmp_path: Path) -> None:
    file = opened(tmp_path / "log", bytes_max=50)
    assert file.append([LINE, LINE]) == (2, None)
    file.close()
    assert (tmp_path / "log").read_bytes() == (tmp_path / "log.1").read_bytes() == LINE


def test_a_file_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = opened(path)
    file.append([LINE])
    os.replace(path, tmp_path / "taken")
    file.append([LINE])
    path.unlink()
    assert file.append([LINE]) == (1, None)
    file.close()
    assert path.read_bytes() == (tmp_path / "taken").read_bytes() == LINE


def test_a_torn_line_of_a_killed_server_stays_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LINE + b'{"cut')
    file = opened(path)
    file.append([LINE])
    file.close()
    assert path.read_bytes().splitlines(keepends=True) == [LINE, b'{"cut\n', LINE]


def test_what_cannot_be_rotated_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = opened(path)
    file.append(numbered(0, 9))
    (tmp_path / "log.1").mkdir()
    (tmp_path / "log.1" / "in the way").touch()
    (tmp_path / "log.2").mkdir()
    (tmp_path / "log.2" / "too").touch()
    written, error = file.append(numbered(9, 12))
    assert written == 1
    assert isinstance(error, OSError)
    file.close()
    assert path.stat().st_size == 1000


def test_a_pipe_is_never_rotated(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = opened(path, bytes_max=150)
    assert file.append([LINE] * 5) == (5, None)
    file.close()
    assert os.read(reader, 10_000) == LINE * 5
    os.close(reader)
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
