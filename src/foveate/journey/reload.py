"""Bring changed settings into force without a restart: read all of them again, check all of them, then swap the rules in one step.

What is wrong keeps the old rules. Requests under way keep the rules they began with. Covers tiers, API keys and the URL policy; every other
setting that changed is named as waiting for a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from foveate.core.budget import Budget
from foveate.core.errors import SettingsRefused, StartupError
from foveate.journey.port import Reloaded
from foveate.journey.rules import LiveRules, Rules
from foveate.observe.logging import get_logger
from foveate.observe.metrics import Metrics

KEYS_FILE = "auth.keys_file"
_NO_ADMIN_LEFT = (
    "No API key has admin: true any more, so nobody may use the admin API. "
    "To change that, edit the keys and send the server SIGHUP."
)
"""A warning and no refusal: a server may start so too, and SIGHUP still reloads."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Reading:
    """All settings as they were read at one time: by dotted key (a tier is one value), and the rules made of them.

    ``restart`` has the keys that hold from the start of the process to its end.
    """

    rules: Rules
    settings: Mapping[str, object]
    restart: frozenset[str]


class Reloads:
    """Reads the settings again, one reload at a time. ``live`` holds the rules that they came to."""

    def __init__(self, first: Reading, read: Callable[[], Reading], metrics: Metrics) -> None:
        """``first`` is what the server starts with; ``read`` runs in a thread and raises StartupError."""
        self.live = LiveRules(first.rules)
        self._read = read
        self._started_with = first.settings
        self._in_force = first
        self._metrics = metrics
        self._one = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Replace the rules. Raises SettingsRefused, with the reason for the operator, and leaves the old ones."""
        async with self._one:
            try:
                fresh = await asyncio.to_thread(self._read)
                _refuse_opening(self._in_force.rules, fresh.rules)
            except StartupError as error:
                self._metrics.count("foveate_reloads_total", "refused")
                log.warning("reload refused, the old rules stay", reason=error.public)
                raise SettingsRefused(f"{error.public} The old settings stay.", detail=error.detail) from error
            old, self._in_force = self._in_force, fresh
            self.live.replace(fresh.rules)
        changed = [key for key in _differing(old.settings, fresh.settings) if key not in fresh.restart]
        if fresh.rules.keys != old.rules.keys and not any(key.startswith("auth.") for key in changed):
            changed.append(KEYS_FILE)
        waiting = [key for key in _differing(self._started_with, fresh.settings) if key in fresh.restart]
        warnings = (_NO_ADMIN_LEFT,) if old.rules.keys.admin and not fresh.rules.keys.admin else ()
        done = Reloaded(tuple(fresh.rules.tiers), len(fresh.rules.keys), tuple(changed), tuple(waiting), warnings)
        self._metrics.count("foveate_reloads_total", "reloaded")
        log.info("reloaded", tiers=done.tiers, keys=done.keys, changed=done.changed, restart_needed=done.restart_needed)
        for warning in warnings:
            log.warning(warning)
        return done


def _refuse_opening(old: Rules, new: Rules) -> None:
    """Refuse to go from keys to none: more likely a file half written than the wish to let everybody in. Raises StartupError."""
    if len(old.keys) and not len(new.keys):
        raise StartupError(
            "The API keys are gone from the settings. To serve everybody without a key, restart the server."
        )


def _differing(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return the keys whose values differ, in order; of a tier that was there before, its fields."""
    found: list[str] = []
    for key in dict.fromkeys((*new, *old)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Budget) and isinstance(after, Budget):
            was, is_now = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
            found += [f"{key}.{name}" for name in is_now if was[name] != is_now[name]]
        elif before != after:
            found.append(key)
    return found
