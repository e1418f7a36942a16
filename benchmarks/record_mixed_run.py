"""Record the request log of the mixed run (200 requests, half text) that tests/unit/observe/test_recorded_run.py judges.

.venv/bin/python benchmarks/record_mixed_run.py tests/data/mixed_run.jsonl
"""

import argparse
from pathlib import Path

from foveate.bench.client import Connection
from foveate.bench.latency import MIXED_REQUESTS, mixed_body
from foveate.bench.server import HOST, running


def main() -> None:
    """Run the requests one after the other against a fresh server and keep its log as it wrote it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("target", type=Path, help="the file that the log is written to, anew")
    target: Path = options.parse_args().target
    target.unlink(missing_ok=True)
    with running("--log-requests", str(target)) as server, Connection(HOST, server.port) as connection:
        for number in range(MIXED_REQUESTS):
            answer = connection.ask(mixed_body(server, number)[1])
            if answer.status != 200:
                raise SystemExit(f"request {number} was answered with status {answer.status}")
    print(f"{len(target.read_text().splitlines())} requests recorded in {target}")


if __name__ == "__main__":
    main()
