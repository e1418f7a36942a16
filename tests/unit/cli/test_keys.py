"""``foveate keys``: what it prints can be used as it is."""

import re

import pytest
import yaml
from typer.testing import CliRunner

from foveate.cli.main import app
from foveate.core.errors import StartupError
from foveate.core.keys import digest
from foveate.settings.keys import key_entry

run = CliRunner().invoke


def test_a_new_key_comes_with_its_entry() -> None:
    done = run(app, ["keys", "new", "--tenant", "acme", "--tier", "batch", "--may-use", "default, night", "--admin"])
    assert done.exit_code == 0
    (key,) = re.findall(r"fov-\S+", done.output)
    (fields,) = yaml.safe_load(done.output[done.output.index("- tenant") :])
    entry = key_entry(fields, "it")
    assert (entry.tenant, entry.tier, entry.may_use, entry.admin) == ("acme", "batch", ("default", "night"), True)
    assert entry.sha256 == digest(key)
    again = run(app, ["keys", "new", "--tenant", "acme"])
    assert key not in again.output


def test_a_key_is_hashed_from_standard_input() -> None:
    key = "fov-0123456789abcdefghijklmnop"
    done = run(app, ["keys", "hash"], input=f"{key}\n")
    assert done.output.strip() == digest(key)
    assert isinstance(run(app, ["keys", "hash"], input="short\n").exception, StartupError)


@pytest.mark.parametrize("tenant", ["a b", "", "-", "é"])
def test_a_tenant_that_cannot_be_one(tenant: str) -> None:
    assert isinstance(run(app, ["keys", "new", "--tenant", tenant]).exception, StartupError)
