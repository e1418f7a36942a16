"""Starting: what a user did wrong is told in one line, with exit code 2; a good start shows what runs."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.blackbox.failing_starts import failing, told
from tests.blackbox.field_cases.marks import field_case
from tests.blackbox.server import COMMAND, Server, environment, title


def copy_of_demo(directory: Path) -> Path:
    """Copy the shipped model's directory."""
    import foveate

    directory.mkdir()
    for file in (Path(foveate.__file__).parent / "models" / "demo").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return directory


def test_port_taken() -> None:
    """By the command itself; other starts that fail are forks (failing_starts.py)."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        command = [*COMMAND, "--host", "127.0.0.1", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment(), check=False)
    line = told(done.returncode, done.stdout, done.stderr)
    assert str(port) in line
    assert "--port" in line


@pytest.mark.parametrize("path", ["no/such/directory", "nobody/no-such-model-anywhere", "./absent", "/absent"])
def test_model_not_found(path: str) -> None:
    line = failing("--model", path)
    assert path in line
    assert "--model" in line or "directory" in line


@pytest.mark.parametrize("family", ["llama", "mllama", "no_such_family"])
def test_unsupported_family(tmp_path: Path, family: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "architectures": ["X"]}))
    line = failing("--model", str(tmp_path))
    assert family in line
    assert "qwen2_5_vl" in line.replace(".", "_").replace("-", "_").lower() or "Qwen2.5-VL" in line


def test_empty_directory(tmp_path: Path) -> None:
    assert "config.json" in failing("--model", str(tmp_path))


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_model(tmp_path: Path, broken: str) -> None:
    directory = copy_of_demo(tmp_path / "model")
    (directory / broken).write_bytes(b"\x00damaged")
    assert len(failing("--model", str(directory))) < 400


def test_missing_weights(tmp_path: Path) -> None:
    directory = copy_of_demo(tmp_path / "model")
    (directory / "model.safetensors").unlink()
    line = failing("--model", str(directory))
    assert "weights" in line or "safetensors" in line


def test_unknown_settings_name_the_nearest(tmp_path: Path) -> None:
    assert "FOVEATE_MEDIA__WORKERS" in failing(FOVEATE_MEDIA__WORKER="1")
    file = tmp_path / "settings.yaml"
    file.write_text("media:\n  worker: 1\n")
    assert "media.workers" in failing("--config", str(file))
    assert "absent.yaml" in failing("--config", str(tmp_path / "absent.yaml"))
    file.write_text("media: [")
    failing("--config", str(file))


def test_unknown_flag() -> None:
    done = subprocess.run(
        [*COMMAND, "--media-worker", "1"], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )
    assert done.returncode == 2
    assert "--media-workers" in done.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "70000"),
        ("--media-workers", "x"),
        ("--max-image-pixels", "-1"),
        ("--limits-arena-bytes-max", "5 parsecs"),
        ("--dtype", "int3"),
    ],
)
def test_wrong_values_name_their_flag(flag: str, value: str) -> None:
    assert flag in failing(flag, value)


def test_not_enough_memory(tmp_path: Path) -> None:
    """Weights of 800 GB: a file that is nearly all hole, with a header that is in order."""
    directory = copy_of_demo(tmp_path / "model")
    size = 800 * 10**9
    header = json.dumps({"weight": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    assert "memory" in failing("--model", str(directory))


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_there(host: str) -> None:
    assert host in failing("--host", host)


def test_a_larger_arena_than_can_be_mapped() -> None:
    assert "--limits-arena-bytes-max" in failing("--limits-arena-bytes-max", "1000000GiB")


def test_a_device_that_is_not_there() -> None:
    assert "cuda" in failing("--device", "cuda:63").lower()


def test_processes_name_themselves(server: Server) -> None:
    titles = {title(process) for process in server.processes()}
    assert titles >= {"foveate: gateway", "foveate: media 0", "foveate: media 1", "foveate: engine 0"}
    assert title(next(process for process in server.processes() if process.pid == server.pid)) == "foveate: gateway"


@field_case(122, "a server that runs", "maps nothing of /dev/shm")
def test_nothing_is_kept_in_dev_shm(server: Server) -> None:
    shared = {
        Path(file.path)
        for process in server.processes()
        for file in process.memory_maps()
        if file.path.startswith("/dev/shm/")
    }
    assert not shared


def test_nobody_listens_but_the_gateway(server: Server) -> None:
    listening = {
        (process.pid, connection.laddr.port)
        for process in server.processes()
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN"
    }
    assert listening == {(server.pid, server.port)}


def test_log_is_readable_and_says_where_to_go(server: Server) -> None:
    assert f"http://127.0.0.1:{server.port}" in server.log_text()
    assert "Traceback" not in server.log_text()


def test_version(server: Server) -> None:
    import foveate

    assert foveate.__version__ in httpx.get(f"{server.base_url}/version").text
