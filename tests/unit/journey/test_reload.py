"""Reloading: what is right comes into force as a whole, what is wrong changes nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foveate.assembly import check
from foveate.core.errors import SettingsRefused
from foveate.core.keys import digest
from foveate.journey.reload import Reading, Reloads
from foveate.journey.rules import LiveRules
from foveate.observe.metrics import Metrics
from foveate.settings import load

KEY, OTHER = digest("one key that nobody can guess"), digest("another key that nobody can guess")


class Operator:
    """Whoever edits the files."""

    def __init__(self, directory: Path) -> None:
        self.settings = directory / "foveate.yaml"
        self.keys = directory / "keys.yaml"
        self.reads = 0
        self.write("multimodal_budget: {default: {max_images: 4}}")

    def write(self, text: str) -> None:
        self.settings.write_text(text)

    def read(self) -> Reading:
        self.reads += 1
        return check(load(config=str(self.settings))).reading


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


@pytest.fixture
def live_of(operator: Operator) -> Callable[[], tuple[LiveRules, Reloads]]:
    def begin() -> tuple[LiveRules, Reloads]:
        reloads = Reloads(operator.read(), operator.read, Metrics())
        return reloads.live, reloads

    return begin


async def test_tiers_keys_and_policy_come_into_force(
    operator: Operator, live_of: Callable[[], tuple[LiveRules, Reloads]]
) -> None:
    live, reloads = live_of()
    before = live.current
    operator.keys.write_text(f"[{{tenant: acme, tier: batch, sha256: {KEY}}}]")
    operator.write(
        f"""
multimodal_budget: {{default: {{max_images: 5, max_redirects: 0}}, batch: {{max_images: 16}}}}
auth: {{keys_file: {operator.keys}}}
fetch: {{http_allowed: true, ports: [80, 443, 8080], concurrency_max: 9}}
server: {{port: 9}}
"""
    )
    done = await reloads.reload()
    assert (done.tiers, done.keys) == (("default", "batch"), 1)
    assert set(done.changed) == {
        "multimodal_budget.default.max_images",
        "multimodal_budget.default.max_redirects",
        "multimodal_budget.batch",
        "auth.keys_file",
        "fetch.http_allowed",
        "fetch.ports",
    }
    assert set(done.restart_needed) == {"fetch.concurrency_max", "server.port"}
    now = live.current
    assert now.tiers["default"].max_images == 5
    assert now.caller("one key that nobody can guess", None).budget.max_images == 16
    assert now.policy.parse("http://example.com:8080/a").port == 8080
    assert now.urls.schemes == ("https", "http", "data")
    assert now.in_force().keys == {"acme": 1}
    assert before.tiers["default"].max_images == 4, "a request under way keeps what it began with"


async def test_a_changed_keys_file_alone_is_a_change(
    operator: Operator, live_of: Callable[[], tuple[LiveRules, Reloads]]
) -> None:
    operator.write(f"auth: {{keys_file: {operator.keys}}}")
    operator.keys.write_text(f"[{{tenant: acme, sha256: {KEY}}}]")
    live, reloads = live_of()
    assert (await reloads.reload()).changed == ()
    operator.keys.write_text(f"[{{tenant: acme, sha256: {OTHER}}}]")
    assert (await reloads.reload()).changed == ("auth.keys_file",)
    assert live.current.caller("another key that nobody can guess", None).tenant == "acme"
    assert (await reloads.reload()).changed == ()


async def test_what_waits_for_a_restart_is_named_until_it_is_taken_back(
    operator: Operator, live_of: Callable[[], tuple[LiveRules, Reloads]]
) -> None:
    _, reloads = live_of()
    operator.write("server: {port: 9}")
    assert (await reloads.reload()).restart_needed == ("server.port",)
    assert (await reloads.reload()).restart_needed == ("server.port",)
    operator.write("multimodal_budget: {}")
    assert (await reloads.reload()).restart_needed == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("multimodal_budget: {default: {max_image: 1}}", "Did you mean max_image"),
        ("multimodal_budget: [", "cannot be read"),
        ("server: {port: 70000}", "less than or equal to 65535"),
        ("auth: {keys_file: /no/such/file}", "No such file"),
        ("fetch: {private_networks: [nonsense]}", "'nonsense' is not a network"),
        ("fetch: {dns_servers: [nonsense]}", "'nonsense' is not a name server"),
        (f"auth: {{keys: ['acme:batch:sha256:{KEY}']}}", "there is no tier 'batch'"),
    ],
)
async def test_what_is_wrong_keeps_the_old_rules_and_says_why(
    operator: Operator, live_of: Callable[[], tuple[LiveRules, Reloads]], text: str, said: str
) -> None:
    live, reloads = live_of()
    before = live.current
    operator.write(text)
    with pytest.raises(SettingsRefused) as caught:
        await reloads.reload()
    assert said in caught.value.public
    assert caught.value.public.endswith("The old settings stay.")
    assert live.current is before
    operator.write("multimodal_budget: {default: {max_images: 3}}")
    assert (await reloads.reload()).changed == ("multimodal_budget.default.max_images",)


async def test_reloads_are_taken_one_at_a_time(operator: Operator) -> None:
    import threading

    first = operator.read()
    inside, most = 0, 0
    lock = threading.Lock()

    def read() -> Reading:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        made = operator.read()
        with lock:
            inside -= 1
        return made

    reloads = Reloads(first, read, Metrics())
    await asyncio.gather(*(reloads.reload() for _ in range(8)))
    assert (most, operator.reads) == (1, 9)


async def test_a_reload_that_leaves_nobody_to_administer_says_so_once(
    operator: Operator, live_of: Callable[[], tuple[LiveRules, Reloads]]
) -> None:
    operator.write(f"auth: {{keys_file: {operator.keys}}}")
    operator.keys.write_text(f"[{{tenant: ops, sha256: {KEY}, admin: true}}, {{tenant: acme, sha256: {OTHER}}}]")
    live, reloads = live_of()
    assert (await reloads.reload()).warnings == ()
    operator.keys.write_text(f"[{{tenant: acme, sha256: {OTHER}}}]")
    with capture_logs() as lines:
        done = await reloads.reload()
    assert len(done.warnings) == 1
    assert "admin: true" in done.warnings[0]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == list(done.warnings)
    assert live.current.in_force().keys == {"acme": 1}, "what the operator wrote holds"
    assert (await reloads.reload()).warnings == (), "there was none before this one"


async def test_a_settings_file_that_lost_its_keys_does_not_open_the_server(
    operator: Operator, live_of: Callable[[], tuple[LiveRules, Reloads]]
) -> None:
    operator.keys.write_text(f"[{{tenant: acme, tier: default, sha256: {KEY}}}]")
    operator.write(f"{{auth: {{keys_file: {operator.keys}}}, fetch: {{only_hosts: [cdn.example.com]}}}}")
    live, reloads = live_of()
    before = live.current
    for text, reason in (
        ("", "holds no setting"),
        ("# nothing but a comment", "holds no setting"),
        ("fetch: {only_hosts: [cdn.example.com]}", "keys are gone"),
        ("[" * 5000, "cannot be read"),
    ):
        operator.write(text)
        with pytest.raises(SettingsRefused, match=reason):
            await reloads.reload()
        assert live.current is before
