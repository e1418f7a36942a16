"""What an operator types and reads."""

import http.server
import threading
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from foveate.cli.canary import lines, parse_share
from foveate.cli.main import app

VERSION = {
    "model": "/models/new",
    "processor_version": "p" * 64,
    "encoder_version": "e" * 64,
    "requests": 40,
    "errors": 1,
    "fresh": 30,
    "ttft_ms_median": 123.456,
    "ttft_ms_p95": None,
}
REPORT = {
    "state": "on_trial",
    "share": 0.05,
    "reason": None,
    "stable": VERSION,
    "canary": VERSION,
    "comparisons": {
        "compared": 7,
        "cosine_mean": 0.98765,
        "cosine_min": 0.9,
        "norm_ratio_mean": 1.01,
        "not_finite": 0,
        "rows_differ": 2,
        "failed": 0,
        "skipped": 3,
    },
    "warmed": 5,
    "not_held": 4,
    "still_ending": 1,
}


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0", 0.0), ("2.5%", 0.025)])
def test_a_share_is_a_percentage_or_a_part(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "five", "5", "101%", "-1%", "nan", "inf%", "%", "5%%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_share(text)


def test_a_report_is_told_whole() -> None:
    told = "\n".join(lines(REPORT))
    for part in (
        "on trial, 5 % of contents",
        "/models/new",
        "40 requests, 1 errors",
        "123.5 ms",
        "– ms",
        "7 pictures",
        "0.9877",
        "2 rows differ",
        "3 skipped",
        "5 contents",
        "1 versions",
    ):
        assert part in told, part


def test_an_empty_report_is_short() -> None:
    nothing = {**REPORT, "state": "none", "share": 0.0, "canary": None, "comparisons": None, "warmed": 0, "not_held": 0}
    assert lines({**nothing, "still_ending": 0})[0] == "state       none"


def test_requests_are_not_told_as_zero_where_nobody_counted_them() -> None:
    idle = {**VERSION, "requests": 0, "errors": 0, "fresh": 0, "ttft_ms_median": None}
    nothing = {**REPORT, "state": "none", "share": 0.0, "stable": idle, "canary": None, "comparisons": None}
    told = "\n".join(lines(nothing))
    assert "encoder eeeeeeeeeeee" in told
    assert "requests" not in told


class Stranger(http.server.BaseHTTPRequestHandler):
    """Another server than the one that was meant."""

    def do_GET(self) -> None:
        if self.path.startswith("/html"):
            self.send_error(404)
        elif self.path.startswith("/json"):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
        else:
            self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def refused(url: str, key: str | None = None) -> str:
    """The one line in which ``foveate canary status`` says why it cannot ask."""
    done = CliRunner().invoke(app, ["canary", "status", "--url", url], env={"FOVEATE_ADMIN_KEY": key})
    assert done.exit_code == 1
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.stderr.startswith("foveate: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize(
    "url", ["", "nonsense", "localhost:8000", "ftp://host", "http://", "http://[", "http://host:port"]
)
def test_what_is_no_address_is_refused_in_one_line(url: str) -> None:
    assert "--url is" in refused(url)


def test_a_key_that_cannot_be_sent_is_never_repeated() -> None:
    for key in (
        "secret-but-much-too-long\nX-Header: 1",
        "ключ-от-сервера-секретный",
        "secret with spaces in the middle",
    ):
        told = refused("http://127.0.0.1:9", key)
        assert key[:6] not in told
        assert "no key" in told


@pytest.mark.parametrize("path", ["/html", "/json", "/ssh"])
def test_another_server_than_the_one_that_was_meant_is_told_in_one_line(stranger: str, path: str) -> None:
    refused(stranger + path)
