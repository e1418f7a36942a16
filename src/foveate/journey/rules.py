"""What holds for requests and can change while the server runs: tiers, API keys, URL policy.

A version of the rules is immutable. A request's tier and rights are those of the version that held when its headers came, its URL policy is
the one that held when its body was complete; both stay to its end, whatever is reloaded meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foveate.core.budget import ANYONE, DEFAULT_TIER, TIER_HEADER, Budget, Caller
from foveate.core.errors import NotPermitted, Unauthenticated
from foveate.journey.key_ring import KeyRing
from foveate.journey.port import RulesInForce, UrlTerms
from foveate.media.policy import UrlPolicy

HTTPS_ONLY = UrlTerms(("https", "data"), (80, 443))


@dataclass(frozen=True)
class Rules:
    """One version. ``tiers`` always has ``default``; every tier that a key names is among them.

    ``urls`` is what clients may know of the policy, ``fetch`` the settings it was made from, for an operator; ``read_at`` is when they
    were read (Unix seconds).
    """

    tiers: Mapping[str, Budget]
    keys: KeyRing = field(default_factory=KeyRing)
    policy: UrlPolicy = field(default_factory=UrlPolicy)
    urls: UrlTerms = HTTPS_ONLY
    fetch: Mapping[str, object] = field(default_factory=dict)
    read_at: float = 0.0

    def caller(self, key: str | None, tier: str | None) -> Caller:
        """Tell who asks. Raises Unauthenticated, NotPermitted (a tier that this caller may not ask for, whether or not there is one)."""
        if not len(self.keys):
            if tier not in (None, DEFAULT_TIER):
                raise NotPermitted(f"{TIER_HEADER} needs an API key that may use that tier; this server has no keys.")
            return Caller(ANYONE, self.tiers[DEFAULT_TIER])
        found = self.keys.find(key) if key else None
        if found is None:
            raise Unauthenticated("This API key is not known here." if key else None)
        if tier not in (None, found.tier, *found.may_use):
            raise NotPermitted(f"This API key may not use the tier that {TIER_HEADER} asks for.")
        return Caller(found.tenant, self.tiers[tier or found.tier], found.admin)

    def in_force(self) -> RulesInForce:
        """Return what an operator may see: no key, and no digest of one."""
        return RulesInForce(dict(self.tiers), self.keys.tenants(), dict(self.fetch), self.read_at)


class LiveRules:
    """Holds the current version."""

    def __init__(self, rules: Rules) -> None:
        self._current = rules

    @property
    def current(self) -> Rules:
        """The version that a request beginning now gets."""
        return self._current

    def replace(self, rules: Rules) -> None:
        """Let requests that begin from now on have ``rules``."""
        self._current = rules
