"""What the README tells a newcomer to type does what it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.blackbox.server import Server

ROOT = Path(__file__).parents[2]


def test_the_readmes_curl_is_answered_rightly(server: Server) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "curl" in block]
    script = block.replace("http://127.0.0.1:8000", server.base_url)
    assert server.base_url in script
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    head, _, body = done.stdout.replace("\r", "").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "\nserver-timing: admission;dur=" in head
    assert json.loads(body)["choices"][0]["message"]["content"] == "A red circle."
