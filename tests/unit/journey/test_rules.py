"""Who asks, and by which tier."""

import pytest

from foveate.core.budget import ANYONE, Budget
from foveate.core.errors import NotPermitted, Unauthenticated
from foveate.core.keys import ApiKey, digest
from foveate.journey.key_ring import KeyRing
from foveate.journey.rules import LiveRules, Rules

TIERS = {name: Budget(tier=name, max_images=number) for number, name in enumerate(("default", "batch", "night"), 1)}
ADMIN = ApiKey(tenant="ops", sha256=digest("admin key"), admin=True)
BATCH = ApiKey(tenant="acme", sha256=digest("batch key"), tier="batch", may_use=("default",))
RULES = Rules(TIERS, KeyRing([ADMIN, BATCH]))


def test_without_keys_everybody_asks_by_the_default_tier_whatever_key_they_send() -> None:
    for key in (None, "none", "batch key"):
        caller = Rules(TIERS).caller(key, None)
        assert (caller.tenant, caller.budget, caller.admin) == (ANYONE, TIERS["default"], False)
    assert Rules(TIERS).caller(None, "default").budget is TIERS["default"]
    with pytest.raises(NotPermitted, match="this server has no keys"):
        Rules(TIERS).caller(None, "batch")


def test_a_key_chooses_tenant_tier_and_rights() -> None:
    caller = RULES.caller("batch key", None)
    assert (caller.tenant, caller.budget, caller.admin) == ("acme", TIERS["batch"], False)
    caller = RULES.caller("admin key", None)
    assert (caller.tenant, caller.budget, caller.admin) == ("ops", TIERS["default"], True)


@pytest.mark.parametrize("key", [None, "", "batch ke", "batch key ", digest("batch key"), "Batch key", "\udcff"])
def test_with_keys_nobody_else_may_ask(key: str | None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        RULES.caller(key, None)
    assert not key or key not in str(caught.value)


def test_another_tier_is_for_keys_that_may_use_it() -> None:
    assert RULES.caller("batch key", "default").budget is TIERS["default"]
    assert RULES.caller("batch key", "batch").budget is TIERS["batch"]
    for key, tier in (("batch key", "night"), ("admin key", "batch"), ("batch key", "no such tier")):
        with pytest.raises(NotPermitted) as caught:
            RULES.caller(key, tier)
        assert caught.value.limit_name is None


def test_a_ring_counts_keys_by_tenant_and_shows_no_hash() -> None:
    ring = KeyRing([ADMIN, BATCH, ApiKey(tenant="acme", sha256=digest("third"))])
    assert ring.tenants() == {"acme": 2, "ops": 1}
    assert digest("third") not in repr(ring)


def test_replacing_the_rules_leaves_what_was_taken() -> None:
    live = LiveRules(Rules(TIERS))
    taken = live.current
    live.replace(RULES)
    assert live.current is RULES
    assert taken.caller(None, None).tenant == ANYONE
