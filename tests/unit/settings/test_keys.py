"""API keys: what a keys file and ``auth.keys`` may hold, and that no error tells a key."""

import json
from pathlib import Path

import pytest

from foveate.core.errors import StartupError
from foveate.core.keys import ApiKey, digest
from foveate.settings import load, read_keys

KEY = "fov-0123456789abcdefghijklmnop"
HASH = digest(KEY)
OTHER = digest("another key that nobody can guess")
TIERS = {"default", "trusted_batch_job"}


def from_file(tmp_path: Path, text: str) -> tuple[ApiKey, ...]:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    return read_keys(load({"auth.keys_file": str(file)}).auth, TIERS)


def test_a_keys_file_is_yaml_or_json(tmp_path: Path) -> None:
    entries = [
        {"tenant": "acme", "sha256": HASH.upper(), "tier": "trusted_batch_job", "may_use": ["default"], "admin": True},
        {"tenant": "acme", "sha256": OTHER},
    ]
    made = (
        ApiKey(tenant="acme", sha256=HASH, tier="trusted_batch_job", may_use=("default",), admin=True),
        ApiKey(tenant="acme", sha256=OTHER),
    )
    assert from_file(tmp_path, json.dumps(entries)) == made
    text = f"""
- tenant: acme
  sha256: {HASH}
  tier: trusted_batch_job
  may_use: [default]
  admin: true
- {{tenant: acme, sha256: {OTHER}}}
"""
    assert from_file(tmp_path, text) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one key"),
        ("[]", "at least one key"),
        ("{tenant: a}", "at least one key"),
        ("- [", "neither YAML nor JSON (line"),
        (f"- {{tenant: acme, sha256: {HASH}, teir: default}}", "entry 1: there is no 'teir'. Did you mean tier?"),
        (f"- {{tenant: acme, sha256: {HASH}, tier: trusted_batch}}", "no tier 'trusted_batch'. Did you mean trusted_b"),
        (f"- {{tenant: acme, sha256: {HASH}, may_use: [nothing]}}", "no tier 'nothing'"),
        (f"- {{tenant: acme, sha256: {HASH}}}\n- {{tenant: acme, sha256: {HASH[:-1]}}}", "entry 2: sha256 is wrong"),
        (f"- {{tenant: acme, sha256: {KEY}}}", "entry 1: sha256 is wrong: it must be 64 hexadecimal digits"),
        (f"- {{tenant: a b, sha256: {HASH}}}", "entry 1: tenant is wrong"),
        (f"- {{sha256: {HASH}}}", "entry 1: tenant is wrong: field required"),
        (f"- {{tenant: acme, sha256: {HASH},\n   tenant: other}}", "has 'tenant' twice, the second time in line 2"),
        (f"- {{{KEY}: 1,\n   {KEY}: 2}}", "has a key twice, the second time in line 2"),
        (f"- {KEY}", "entry 1: the entry is wrong"),
    ],
)
def test_a_wrong_file_names_the_entry_and_tells_no_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StartupError) as caught:
        from_file(tmp_path, text)
    assert said in caught.value.public
    assert KEY not in str(caught.value)
    assert HASH[:-1] not in caught.value.public
    assert "\n" not in caught.value.public


def test_a_keys_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"absent.*cannot be read: No such file"):
        read_keys(load({"auth.keys_file": str(tmp_path / "absent")}).auth, TIERS)


def test_the_same_key_twice_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"- {{tenant: acme, sha256: {HASH}}}\n")
    settings = load({"auth.keys_file": str(file), "auth.keys": f"other:default:sha256:{HASH}"})
    with pytest.raises(StartupError, match=r"auth\.keys, entry 1 \(tenant other\) has the same key as .*entry 1"):
        read_keys(settings.auth, TIERS)


def test_keys_without_a_file() -> None:
    text = f"acme:trusted_batch_job:sha256:{HASH}:may_use=default:admin, other::sha256:{OTHER}"
    assert read_keys(load({"auth.keys": text}).auth, TIERS) == (
        ApiKey(tenant="acme", sha256=HASH, tier="trusted_batch_job", may_use=("default",), admin=True),
        ApiKey(tenant="other", sha256=OTHER),
    )


def test_a_plain_key_of_the_environment_is_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_AUTH__KEYS", f"acme:default:plain:{KEY}:admin")
    settings = load()
    assert KEY not in repr(settings)
    assert read_keys(settings.auth, TIERS) == (ApiKey(tenant="acme", sha256=HASH, admin=True),)


def test_a_plain_key_is_refused_where_others_see_it(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="environment only") as caught:
        load({"auth.keys": f"acme:default:plain:{KEY}"})
    assert KEY not in str(caught.value)
    file = tmp_path / "foveate.yaml"
    file.write_text(f"auth: {{keys: ['acme:default:plain:{KEY}']}}")
    with pytest.raises(StartupError, match="environment only"):
        load(config=str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"acme:default:plain:{KEY[:12]}", "at least 20 characters"),
        (f"acme:default:plain:{KEY} {KEY}", "without spaces"),
        (f"acme:{KEY}", "entry 1: write TENANT:TIER:sha256:HEX"),
        (f"acme:default:{KEY}", "entry 1: write TENANT"),
        (f"ok:default:sha256:{HASH},acme:default:sha256:{HASH}x", "entry 2: sha256 is wrong"),
        (f"acme:default:sha256:{HASH}:admim", ":admin or :may_use="),
        ("", "holds no key"),
    ],
)
def test_wrong_keys_of_the_environment_are_told_without_the_key(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("FOVEATE_AUTH__KEYS", text)
    with pytest.raises(StartupError) as caught:
        read_keys(load().auth, TIERS)
    assert said in caught.value.public
    assert KEY not in caught.value.public
