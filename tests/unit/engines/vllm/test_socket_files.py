"""The directories of vLLM's sockets: one for each process, gone with it or at the next one's start."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
from pathlib import Path

from foveate.engines.vllm.socket_files import SocketFiles


def test_each_has_a_directory_of_this_user_alone(tmp_path: Path) -> None:
    one, other = SocketFiles(tmp_path), SocketFiles(tmp_path)
    assert one.path != other.path
    assert {stat.S_IMODE(each.path.stat().st_mode) for each in (one, other)} == {0o700}
    one.remove()
    assert list(tmp_path.iterdir()) == [other.path]
    other.remove()


def test_one_that_was_killed_is_cleared_away_after_it_and_a_living_one_is_not(tmp_path: Path) -> None:
    """A process that a killed one had forked still uses its sockets."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        files = SocketFiles(tmp_path)
        socket.socket(socket.AF_UNIX).bind(str(files.path / "socket"))
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        os.write(writes, str(grandchild).encode())
        signal.pause()
    grandchild = os.pidfd_open(int(os.read(reads, 16)))
    (left,) = tmp_path.iterdir()
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        SocketFiles(tmp_path).remove()
        assert (left / "socket").exists()
    finally:
        signal.pidfd_send_signal(grandchild, signal.SIGKILL)
    assert select.select([grandchild], [], [], 30)[0], "it has ended"
    SocketFiles(tmp_path).remove()
    assert not list(tmp_path.iterdir())


def test_what_is_no_directory_of_this_kind_stays(tmp_path: Path) -> None:
    (tmp_path / "foveate-vllm-note").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "foveate-vllm-link").symlink_to(tmp_path / "elsewhere")
    SocketFiles(tmp_path).remove()
    assert {one.name for one in tmp_path.iterdir()} == {"foveate-vllm-note", "elsewhere", "foveate-vllm-link"}
