"""What an operator types and reads."""

from typer.testing import CliRunner

from foveate.cli.main import app
from foveate.cli.topology import lines

WORKER = {
    "worker": 1, "state": "recovering", "waiting": 2, "held": 3, "batches": 10, "pictures": 17, "busy_seconds": 1.25, "restarts": 1,
}  # fmt: skip
REPORT = {
    "kind": "e-pd",
    "encoders": 1,
    "waiting": 2,
    "local": True,
    "local_pictures": 4,
    "workers": [WORKER],
    "encoders_max": 3,
    "prefill": 0,
    "decode": 0,
    "engines": [],
}
ENGINE = {
    "name": "0", "usable": True, "restarts": 2, "in_flight": 3, "outstanding_tokens": 9.0, "role": "p", "draining": False, "leaving": False,
}  # fmt: skip


def test_a_report_is_told_whole() -> None:
    told = "\n".join(lines(REPORT))
    for part in ("e-pd, encode workers: 1, up to 3", "2 pictures", "encodes where no worker can (4 so far)", "encoder 1   recovering",
                 "5 to do",
                 "17 done in 10 batches and 1.2 s", "1 restarts"):  # fmt: skip
        assert part in told
    apart = {"kind": "e-p-d", "prefill": 2, "decode": 1, "encoders_max": 0}
    engines = [
        ENGINE,
        ENGINE | {"name": "1", "role": "d", "usable": False},
        ENGINE | {"role": "pd", "draining": True, "leaving": True},
    ]
    told = "\n".join(lines(REPORT | apart | {"engines": engines}))
    for part in ("prefill: 2, token decode: 1", "engine 0    up", "prefill, 3 under way, 2 restarts", "engine 1    down", "token decode",
                 "leaving", "whole requests"):  # fmt: skip
        assert part in told
    assert lines(REPORT | {"kind": "agg", "encoders": 0, "workers": [], "encoders_max": 0}) == [
        "topology    agg, encode workers: 0"
    ]


def test_what_is_no_topology_is_refused_before_a_server_is_asked() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["topology", "set", "epd"]).exit_code == 2
    assert runner.invoke(app, ["topology", "set", "e-pd", "--encoders", "0"]).exit_code == 2
    assert runner.invoke(app, ["topology", "set", "e-p-d", "--decode-workers", "0"]).exit_code == 2


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    refused = CliRunner().invoke(app, ["topology", "show", "--url", "http://127.0.0.1:1"])
    assert refused.exit_code == 1
    assert "cannot be asked" in refused.output
