"""``foveate log``: what it prints of a log, and what it says when there is none."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner, Result

from foveate.cli.main import app
from foveate.core.errors import StartupError

ITEM = {"index": 0, "ready_ms": 9.0, "starts_ms": [1.0, 3.0], "media_fetch_ms": 2.0, "vision_encode_ms": 6.0}
TIMES = {
    "starts_ms": [0.0, 1.0, 3.0, 9.0, 10.0],
    "ttft_ms": 15.0,
    "unattributed_ms": 0.5,
    "tpot_ms": 2.0,
    "total_ms": 25.0,
}
STAGES = {
    "admission_ms": 1.0,
    "media_fetch_ms": 2.0,
    "vision_encode_ms": 6.0,
    "llm_queue_ms": 1.0,
    "llm_prefill_ms": 4.5,
}
PICTURE = {"modality": "multimodal", "images": 1, "items": [ITEM], "critical": 0, "items_omitted": 3, **STAGES, **TIMES}


def entry(number: int, **fields: Any) -> str:
    line = {"time": f"2026-11-30T11:{number:02}:00.000Z", "id": f"chatcmpl-{number:028}", "modality": "text"}
    return json.dumps({**line, "model": "demo", "outcome": "answered", "total_ms": 9.0, **fields}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = tmp_path / "requests.jsonl"
    log.with_name("requests.jsonl.1").write_text("".join(entry(number) for number in range(30)))
    log.write_text(entry(30, **PICTURE) + entry(31, outcome="refused", error="image_too_large") + '{"time": "2026')
    return log


def run(*arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(app, ["log", *arguments], **options)


def test_the_latest_with_a_note_on_damage(path: Path) -> None:
    done = run("--file", str(path))
    assert done.exit_code == 0
    rows = done.stdout.splitlines()[1:]
    assert len(rows) == 20
    assert f"chatcmpl-{31:028}" in rows[-1]
    assert "image_too_large" in rows[-1]
    assert "\x1b" not in done.stdout, "no colour where it is piped"
    assert "1 damaged line was skipped" in done.stderr


def test_the_slowest_of_a_kind(path: Path) -> None:
    done = run("--slowest", "20", "--modality", "multimodal", "--stage", "vision_encode", "--file", str(path))
    (row,) = done.stdout.splitlines()[1:]
    assert f"chatcmpl-{30:028}" in row
    assert "vision_encode" in row
    nothing = run("--status", "failed", "--file", str(path))
    assert nothing.stdout == ""
    assert "none of the log's 32 requests" in nothing.stderr


def test_lines_as_they_were_logged(path: Path) -> None:
    done = run("--json", "--last", "2", "--file", str(path))
    assert [json.loads(line)["id"][-2:] for line in done.stdout.splitlines()] == ["30", "31"]


def test_standard_input(path: Path) -> None:
    assert "image_too_large" in run("--file", "-", input=path.read_text()).stdout


def test_a_waterfall(path: Path) -> None:
    done = run("show", f"chatcmpl-{30:028}", "--file", str(path))
    assert done.exit_code == 0
    bars = {row.split()[-5] if "*" in row else row.split()[-4]: row for row in done.stdout.splitlines() if "█" in row}
    assert list(bars) == ["admission", "media_fetch", "vision_encode", "llm_queue", "llm_prefill", "tpot"]
    assert all("*" in row for stage, row in bars.items() if stage != "tpot")
    first, last = (row.index("█") for row in (bars["admission"], bars["tpot"]))
    assert first < bars["vision_encode"].index("█") < bars["llm_prefill"].index("█") < last
    assert bars["vision_encode"].count("█") > bars["media_fetch"].count("█")
    assert "unattributed 0.5 ms" in done.stdout
    assert "3 more items" in done.stdout
    assert "older version" not in done.stdout


def test_an_unknown_id_is_one_sentence(path: Path) -> None:
    assert isinstance(run("show", "nothing", "--file", str(path)).exception, StartupError)


def test_parquet(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    for _ in range(2):
        done = run("export", str(target), "--file", str(path))
        assert "32 requests written" in done.stdout
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    encoded = "sum(list_sum(list_transform(items, lambda item: item.vision_encode_ms)))"
    ((*numbers, ended, ms),) = duckdb.sql(
        f"SELECT count(*), count(DISTINCT id), max(time), {encoded} FROM '{target}'"
    ).fetchall()
    assert (numbers, str(ended), ms) == ([32, 32], "2026-11-30 11:31:00", 6.0)
    run("export", str(target), "--modality", "multimodal", "--file", str(path))
    assert duckdb.sql(f"SELECT count(*) FROM '{target}'").fetchall() == [(1,)]
    assert isinstance(run("export", str(tmp_path / "no" / "x.parquet"), "--file", str(path)).exception, StartupError)


@pytest.mark.parametrize(
    ("where", "said"), [("off", "is off"), ("stdout", "standard output"), ("/no/such", "no request log")]
)
def test_no_log_is_explained(where: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_LOG__REQUESTS", where)
    with pytest.raises(StartupError, match=said):
        raise run().exception  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [("--modality", "video"), ("--stage", "decode"), ("--since", "soon")])
def test_a_wrong_filter_names_what_there_is(path: Path, wrong: tuple[str, str]) -> None:
    assert isinstance(run(*wrong, "--file", str(path)).exception, StartupError)


def test_a_client_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    """A model's name comes from whoever asks. At a terminal it must not move the cursor, nor be read as markup."""
    log = tmp_path / "requests.jsonl"
    log.write_text(entry(1, model="\x1b[2J\x1b]0;owned\x07[bold]x\n\u202eevil", tenant="\x9b31m"))
    for arguments in (["--file", str(log)], ["show", "chatcmpl", "--file", str(log)]):
        shown = at_a_terminal(arguments)
        assert "\x1b[2J" not in shown
        assert "\x1b]0;" not in shown
        assert "\x9b" not in shown
        assert "\u202e" not in shown
    assert "[bold]x" in shown


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_narrow_terminal_loses_no_figure(path: Path, columns: int) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", at_a_terminal(["--slowest", "3", "--file", str(path)], columns, damaged=True))
    rows = [row.rstrip("\r") for row in shown.splitlines()]
    assert max(map(len, rows)) <= columns
    (row,) = [row for row in rows if "vision_encode" in row]
    for expected in ("11:30:00", "multimodal", "answered", "15.0", "6.0", "chatcmpl-00000000"):
        assert expected in row
    assert ("25.0" in row) == (columns == 200)


def test_a_waterfall_loses_no_figure_either(path: Path) -> None:
    shown = at_a_terminal(["show", f"chatcmpl-{30:028}", "--file", str(path)], 80, damaged=True)
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row).rstrip("\r") for row in shown.splitlines()]
    assert "…" not in shown
    bars = [row for row in rows if "█" in row]
    assert max(map(len, bars)) <= 80
    assert bars[0].startswith("request")
    assert any(row.startswith("item ") for row in bars)
    assert all(re.search(r" \d+\.\d +\d+\.\d$", row) for row in bars)


def at_a_terminal(arguments: list[str], columns: int = 160, *, damaged: bool = False) -> str:
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if not name.startswith("FOVEATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "foveate", "log", *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**env, "TERM": "xterm-256color", "COLUMNS": str(columns)},
        timeout=60,
        check=True,
    )
    assert damaged or done.stderr == b""
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # Linux tells so that the other end is closed
        pass
    os.close(ours)
    return shown.decode()


def test_a_plain_terminal_gets_what_it_can_show(path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FOVEATE_")}
    path.write_text(entry(30, **{**PICTURE, "model": "modèle"}))
    done = subprocess.run(
        [sys.executable, "-m", "foveate", "log", "show", "chatcmpl", "--file", str(path)],
        capture_output=True,
        env={**env, "PYTHONIOENCODING": "ascii"},
        timeout=60,
        check=False,
    )
    assert b"several requests" in done.stderr
    path.with_name("requests.jsonl.1").unlink()
    done = subprocess.run(
        done.args, capture_output=True, env={**env, "PYTHONIOENCODING": "ascii"}, timeout=60, check=True
    )
    assert b"###" in done.stdout
    assert b"mod?le" in done.stdout
