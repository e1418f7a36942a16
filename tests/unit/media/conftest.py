"""What several tests of the media package need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key, both = folder / "key.pem", folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(both)]
    subprocess.run(
        [*command, "-days", "2", "-subj", "/CN=img.test", "-addext", "subjectAltName=DNS:img.test"],
        check=True,
        capture_output=True,
    )
    both.write_text(both.read_text() + key.read_text())
    return both
