"""What is known of one server behind this one: its health, its models, what it has to do, what it probably still holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, get_args

import msgspec

from foveate.decisions import health
from foveate.decisions.health import Health
from foveate.decisions.routing import STREAM_TOKENS, Candidate
from foveate.engines.affinity import Link, Memory
from foveate.engines.port import RelayedMedia, RelayOutcome, RelayReport
from foveate.engines.upstream.config import RelayConfig, ServerConfig

HELD_MAX: Final = 16384
"""Media remembered by name of one server, at some 200 bytes each."""
BUSY_SECONDS_MAX: Final = 5.0
"""How long a server that says it has too much to do is left alone at most, whatever Retry-After it names."""
COMPARE_AGAIN_SECONDS: Final = 30.0
TAKES_UUIDS: Final = frozenset({"vllm", "foveate"})
"""Who owns its models, by its own listing, where a uuid beside media is known to be understood."""


class Listed(msgspec.Struct, frozen=True):
    """A model as ``/v1/models`` lists it. ``max_model_len`` is vLLM's, Foveate's and others' word for the context."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class Listing(msgspec.Struct, frozen=True):
    """The answer of ``/v1/models``."""

    data: list[Listed]


class Server:
    """One server. Lives on the event loop; nothing here waits."""

    def __init__(self, config: ServerConfig, relay: RelayConfig) -> None:
        self.config = config
        self.health = Health()
        self.draining = False
        self.in_flight = 0
        self.outstanding = 0.0
        self.resent = 0
        self.ended: dict[RelayOutcome, int] = dict.fromkeys(get_args(RelayOutcome), 0)
        self.listed: tuple[Listed, ...] = ()
        self.last_error = ""
        self.agreed = config.mode != "embeds"
        """Whether it was found to answer by embeddings as by pixels, where it is sent those."""
        self.disagreement = ""
        self._look_again_at = 0.0
        self._relay = relay
        self._busy_until = 0.0
        self._memory = Memory()
        self._held: OrderedDict[str, None] = OrderedDict()

    @property
    def models(self) -> dict[str, str]:
        """Its models by the names that clients use."""
        if self.config.models:
            return dict(self.config.models)
        if self._relay.served_name is not None:
            return {self._relay.served_name: self.listed[0].id} if self.listed else {}
        return {one.id: one.id for one in self.listed}

    def context_tokens_max(self, model: str) -> int:
        """A model's context by the clients' name; 0: it does not say."""
        theirs = self.models.get(model)
        return next((one.max_model_len or 0 for one in self.listed if one.id == theirs), 0)

    @property
    def takes_uuids(self) -> bool:
        """Whether a uuid may stand beside media."""
        if self.config.uuid == "auto":
            return any(one.owned_by.lower() in TAKES_UUIDS for one in self.listed)
        return self.config.uuid == "on"

    @property
    def usable(self) -> bool:
        """Whether it is up, and agrees where it must."""
        return self.health.up and self.agreed

    def may_be_asked(self, model: str, now: float, *, alone: bool = False) -> bool:
        """Whether it serves the model, is usable, not draining, and did not just say that it has too much to do. ``alone``: the request is
        for this server only, so that it may be what tells whether it agrees.
        """
        return (
            (self.usable or (alone and self.health.up))
            and not self.draining
            and now >= self._busy_until
            and model in self.models
        )

    def holds(self, media: Iterable[RelayedMedia]) -> bool:
        """Whether it probably has all of these, and can be told which by name."""
        return self.takes_uuids and self.config.mode == "bytes" and all(one.name in self._held for one in media)

    @property
    def held(self) -> OrderedDict[str, None]:
        """The media that it probably holds, by name."""
        return self._held

    def candidate(self, links: Sequence[Link], now: float) -> Candidate:
        """Return what the choice needs to know of it."""
        return Candidate(
            weight=self.config.weight,
            share=health.share(self.health, now, self._relay.recover_seconds),
            outstanding=self.outstanding,
            in_flight=self.in_flight,
            places=self.config.concurrency_max,
            matched=self._memory.matched(links),
        )

    def report(self, now: float) -> RelayReport:
        """Tell about it."""
        return RelayReport(
            name=self.config.name,
            models=tuple(self.models),
            up=self.usable,
            healthy=self.health.up,
            draining=self.draining,
            share=round(health.share(self.health, now, self._relay.recover_seconds), 3),
            in_flight=self.in_flight,
            outstanding_tokens=self.outstanding,
            ended=dict(self.ended),
            resent=self.resent,
            error=self.last_error or (self.disagreement if not self.agreed else ""),
        )

    def began(self, demand: float, links: Sequence[Link]) -> None:
        """A request is on its way to it."""
        self.in_flight += 1
        self.outstanding += demand
        self._memory.note(links)

    def prefilled(self, demand: float) -> None:
        """The request's first output came."""
        self.outstanding += STREAM_TOKENS - demand

    def left(self, demand: float, *, prefilled: bool, outcome: RelayOutcome) -> None:
        """The request has ended there."""
        self.in_flight -= 1
        self.outstanding -= STREAM_TOKENS if prefilled else demand
        if self.in_flight == 0:
            self.outstanding = 0.0  # so that rounding does not add up
        self.ended[outcome] += 1

    def answered(self, media: Iterable[RelayedMedia]) -> None:
        """It answered a request, so it has read its media."""
        self.health = health.answered(self.health)
        if self.takes_uuids and self.config.mode == "bytes":
            for one in media:
                self._held[one.name] = None
                self._held.move_to_end(one.name)
                if len(self._held) > HELD_MAX:
                    self._held.popitem(last=False)

    def lacks(self, media: Iterable[RelayedMedia]) -> None:
        """It no longer holds these."""
        self.resent += 1
        for one in media:
            self._held.pop(one.name, None)

    def busy(self, now: float, seconds: float | None) -> None:
        """It says that it has too much to do."""
        self._busy_until = now + min(seconds or 1.0, BUSY_SECONDS_MAX)

    def looked_well(self, now: float, listed: tuple[Listed, ...] | None) -> None:
        """A look at its health found it well; ``listed`` are its models, None where they were not asked for."""
        self.health = health.looked_well(self.health, now)
        self.last_error = ""
        if listed is not None:
            self.listed = listed

    def to_compare(self, now: float) -> bool:
        """Whether it is to be asked now whether it agrees."""
        return self.health.up and not self.agreed and bool(self.models) and now >= self._look_again_at

    def compared(self, reason: str, now: float) -> None:
        """It agrees where there is no reason against it; else it is looked at again later: it may have been restarted unseen."""
        self.agreed, self.disagreement = not reason, reason
        self._look_again_at = now + COMPARE_AGAIN_SECONDS

    def failed(self, now: float, error: str, *, gone: bool = False) -> bool:
        """It failed; return whether it is left out because of that from now on. What it held may be gone with it."""
        was_up = self.health.up
        self.health = health.failed(self.health, now, failures_max=self._relay.failures_max, gone=gone)
        self.last_error = error
        if was_up and not self.health.up:
            self._memory.forget()
            self._held.clear()
            # What comes back may be another model.
            self.agreed, self._look_again_at = self.config.mode != "embeds", 0.0
            return True
        return False
