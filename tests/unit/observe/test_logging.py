from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

from foveate.observe.logging import configure, get_logger


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def logged(write: Callable[[], None], **settings: object) -> str:
    stream = io.StringIO()
    configure(stream=stream, **settings)  # type: ignore[arg-type]
    write()
    return stream.getvalue()


def test_json_lines() -> None:
    line = logged(lambda: get_logger("foveate.media").info("worker replaced", worker=2), json=True)
    entry = json.loads(line)
    assert (entry["event"], entry["worker"], entry["level"], entry["logger"]) == (
        "worker replaced",
        2,
        "info",
        "foveate.media",
    )
    assert entry["timestamp"].endswith("Z")


def test_readable_lines_have_no_escape_codes_off_a_terminal() -> None:
    line = logged(lambda: get_logger("foveate.media").warning("worker replaced", worker=2))
    assert "worker replaced" in line
    assert "worker=2" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ["foveate.media", "uvicorn"])
def test_nothing_private_passes(as_json: bool, name: str) -> None:
    def write() -> None:
        get_logger(name).warning(
            "got https://u:SECRET@h.example/a?t=SECRET", url="data:image/png;base64,SECRET", blob=b"SECRET"
        )
        logging.getLogger(name).warning("got %s", "data:image/png;base64,SECRET")
        try:
            raise ValueError("https://h.example/a?t=SECRET")
        except ValueError:
            get_logger(name).exception("failed")
            logging.getLogger(name).exception("failed")

    text = logged(write, json=as_json)
    assert "SECRET" not in text
    assert text.count("data:[cut]") == 2
    assert text.count("ValueError: https://h.example/a?[cut]") == 2
    if as_json:
        assert len([json.loads(line) for line in text.splitlines()]) == 4


def test_the_level_holds_for_ours_and_for_third_parties() -> None:
    def write() -> None:
        get_logger("foveate").info("ours")
        logging.getLogger("uvicorn").info("theirs")
        get_logger("foveate").error("both")

    text = logged(write, level="warning")
    assert "ours" not in text
    assert "theirs" not in text
    assert "both" in text


def test_a_third_partys_own_start_and_end_are_not_told_at_info() -> None:
    def write() -> None:
        get_logger("foveate").info("ours")
        logging.getLogger("uvicorn.error").info("Started server process")
        logging.getLogger("uvicorn.error").warning("theirs")

    assert "Started" not in (text := logged(write, level="info"))
    assert "ours" in text
    assert "theirs" in text
    assert "Started" in logged(write, level="debug")


def test_context_variables_are_part_of_a_line() -> None:
    def write() -> None:
        with structlog.contextvars.bound_contextvars(request_id="r-7"):
            get_logger("foveate").info("refused")

    assert json.loads(logged(write, json=True))["request_id"] == "r-7"
