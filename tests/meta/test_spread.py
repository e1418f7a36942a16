"""Several processes run the tests as ``tests/spread.py`` says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import pytest_collection_modifyitems, pytest_xdist_make_scheduler\n"
TESTS = """\
import os, time
import pytest

pytestmark = [pytest.mark.xdist_group(group) for group in {groups!r}]

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    time.sleep({seconds})
    with open({log!r}, "a") as log:
        log.write(f"{{os.getpid()}} {name}\\n")
"""


def run(directory: Path, files: dict[str, tuple[list[str], int, float]], *flags: str) -> list[tuple[str, str]]:
    """Run these files (groups, tests, seconds for each) in two processes; return which process ran a test of which file, as they ended."""
    (directory / "conftest.py").write_text(CONFTEST)
    log = directory / "log"
    for name, (groups, count, seconds) in files.items():
        text = TESTS.format(groups=groups, count=count, seconds=seconds, log=str(log), name=name)
        (directory / f"test_{name}.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist",
        "-n",
        "2",
        "--dist",
        "loadscope",
        *flags,
    ]
    ended = subprocess.run(
        [*command, "--rootdir", str(directory), str(directory)],
        cwd=directory,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [(process, name) for process, name in map(str.split, log.read_text().splitlines())]


@pytest.mark.parametrize("others", [1, 3])
def test_what_runs_alone_begins_when_all_others_have_ended(tmp_path: Path, others: int) -> None:
    files = {"a": (["alone"], 3, 0.0), **{f"b{number}": ([], 4, 0.1) for number in range(others)}}
    ran = run(tmp_path, files)
    assert len(ran) == 3 + 4 * others
    assert [name for _, name in ran[-3:]] == ["a"] * 3
    assert len({process for process, _ in ran}) == 2 or others == 1


def test_files_and_groups_stay_together(tmp_path: Path) -> None:
    ran = run(tmp_path, {"a": (["one"], 2, 0.1), "b": ([], 4, 0.1), "c": (["one"], 2, 0.0), "d": ([], 1, 0.0)})
    by = {name: {process for process, found in ran if found == name} for name in "abcd"}
    assert by["a"] == by["c"]
    assert [len(processes) for processes in by.values()] == [1] * 4
    assert by["a"] != by["b"]


def test_what_is_chosen_alone_runs(tmp_path: Path) -> None:
    assert [name for _, name in run(tmp_path, {"a": (["alone"], 2, 0.0)})] == ["a", "a"]
