"""The connection to a Ray cluster, and actors on its nodes. Blocking calls of Ray are made on threads.

An actor is given by the resources that its role needs; one whose process died is kept for a successor, which starts at once there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from foveate.core.clock import now
from foveate.core.errors import StartupError
from foveate.runtime.port import WorkerSpec
from foveate.runtime.ray.parcel import Parcel, machine

# Equal lines of several processes are each of use: a traceback without them cannot be read. Ray takes this when it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise StartupError("Ray is not installed here: pip install 'foveate[ray]', or see docs/ray.md.") from error

logger = logging.getLogger(__name__)

_KEPT_SECONDS: Final = 60.0
"""How long an actor without a process is kept for a successor."""
_AVOIDED_SECONDS: Final = 90.0
"""How long no actor is placed where one was lost, while another node can take it. Ray believes in a node that went without a word until its
health checks have failed: by its defaults 15 s (period times threshold), and 60 s where it cannot even tell that a check failed. An actor
that is placed there meanwhile is lost, too."""
_PLACES_MAX: Final = 3
"""Times an actor that was lost before it held a process is placed."""
_PLACE_SECONDS: Final = 20.0
"""How long an actor may take to be there while nodes are avoided, then it is placed again: at times Ray asks one of them all the same."""
_NODE_LABEL: Final = "ray.io/node-id"
"""The label that Ray gives each node."""
_CONNECT_SECONDS: Final = 5.0
"""How long a connection to the cluster's head may take."""
_LOOKS: Final = 3
"""Times another machine's clock is looked at; the shortest look counts."""
_THREAD_BYTES: Final = 256 * 1024
"""Bytes from which handing them to Ray, which copies them, is done on a thread."""


class HostLost(Exception):
    """The actor, its node or the way to it is gone."""


class HostBroken(HostLost):
    """The actor cannot be: making it raises."""


@dataclass(frozen=True)
class ClusterConfig:
    """``address`` as Ray's: ``auto``, ``HOST:PORT``. ``needs`` returns the resources of a worker by Ray's names (``CPU``, ``GPU``, own)."""

    address: str
    needs: Callable[[WorkerSpec], Mapping[str, float]]
    namespace: str = "foveate"


async def connect(config: ClusterConfig) -> Callable[[], None]:
    """Connect this process, unless it is, and return what takes the connection back. Raises StartupError."""
    if ray.is_initialized():
        return lambda: None
    await _check_address(config.address)
    try:
        await asyncio.to_thread(
            ray.init,
            address=config.address,
            namespace=config.namespace,
            configure_logging=False,
            logging_level=logging.WARNING,
            log_to_driver=True,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        raise StartupError(
            f"There is no Ray cluster at {config.address}. Start one with: ray start --head", detail=repr(error)
        ) from error
    return ray.shutdown


async def _check_address(address: str) -> None:
    """Raise StartupError where nobody listens at the cluster's ``HOST:PORT``: Ray itself would try for minutes, without a word."""
    given = (os.environ.get("RAY_ADDRESS") or "auto") if address == "auto" else address
    host, _, port = given.rpartition(":")
    if "://" in given or not port.isdecimal() or not host:
        return  # what Ray finds, or judges, itself
    # A head may listen on its node's address only, which Ray takes for the loopback one.
    own: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    hosts = [host, own] if host in ("localhost", "127.0.0.1") else [host]
    failed: list[Exception] = []
    for each in hosts:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(each, int(port))
        except (OSError, OverflowError, TimeoutError) as error:
            failed.append(error)
        else:
            writer.close()
            return
    raise StartupError(
        f"There is no Ray cluster at {given}: nobody listens there. Start one with: ray start --head",
        detail=repr(failed),
    )


class Host:
    """An actor as the gateway holds it. Methods raise :class:`HostLost`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._runs = itertools.count(1)
        self._run = 0
        self.node = ""
        """Ray's id of its node."""
        self.clock_ahead = 0.0
        """Seconds that this machine's clock is ahead of the actor's: 0 on one machine, else told within half of a call's time."""

    async def look(self) -> None:
        """Wait until it is there, and see where, and what its clock says."""
        looks: list[tuple[float, float]] = []
        for _ in range(_LOOKS):
            asked = now()
            self.node, where, theirs = await _answer(self._actor.where.remote())
            answered = now()
            if where == machine():
                self.clock_ahead = 0.0
                return
            looks.append((answered - asked, (asked + answered) / 2 - theirs))
        self.clock_ahead = min(looks)[1]

    async def begin(self, packed: bytes, seconds_max: float) -> None:
        """See :class:`foveate.runtime.ray.host.WorkerHost`, here and below."""
        self._run = next(self._runs)
        await _answer(self._actor.begin.remote(self._run, packed, seconds_max))

    async def poll(self) -> list[Parcel]:
        found: list[Parcel] = await _answer(self._actor.poll.remote(self._run))
        return found

    async def deliver(self, parcels: Sequence[Parcel]) -> None:
        call = partial(self._actor.deliver.remote, self._run, parcels)
        large = sum(parcel.size for parcel in parcels) > _THREAD_BYTES
        try:
            reference = await asyncio.to_thread(call) if large else call()
        except RayError as error:
            raise HostLost(f"{type(error).__name__}: {error}") from error
        await _answer(reference)

    async def stop(self, seconds_max: float) -> None:
        await _answer(self._actor.stop.remote(self._run, seconds_max))

    def ask_to_kill(self) -> None:
        """Ask the actor to end its process; nothing tells whether it can."""
        with suppress(RayError):
            self._actor.kill.remote(self._run)

    def end(self) -> None:
        """End the actor, and with it its process."""
        with suppress(RayError):
            ray.kill(self._actor, no_restart=True)


class Hosts:
    """All actors of one server."""

    def __init__(self, config: ClusterConfig, arena_bytes: int, preload: Sequence[str]) -> None:
        self._config = config
        self._arena_bytes = arena_bytes
        self._preload = tuple(preload)
        self._kept: dict[tuple[str, str, int], tuple[Host, asyncio.TimerHandle]] = {}
        self._avoided: dict[str, float] = {}
        """Until when which node is avoided."""

    def needs(self, spec: WorkerSpec) -> dict[str, float]:
        """Return the resources that this worker's actor takes on its node."""
        return dict(self._config.needs(spec))

    async def take(self, spec: WorkerSpec) -> Host:
        """Return an actor for this worker: the one that its predecessor left, else a new one, for which a node with room is waited for.

        Raises HostLost.
        """
        kept = self._kept.pop(_seat(spec), None)
        if kept is not None:
            host, timer = kept
            timer.cancel()
            if await self._there(host, seconds_max=_PLACE_SECONDS):
                return host
        for left in reversed(range(_PLACES_MAX)):
            host = self._placed(spec)
            seconds_max = _PLACE_SECONDS if left and self._avoided else None
            if await self._there(host, seconds_max=seconds_max, raises=not left):
                return host
            logger.warning("%s was lost before it held a process and is placed again", spec.title)
        raise AssertionError("the last one is there, or its loss was raised")

    async def _there(self, host: Host, *, seconds_max: float | None = None, raises: bool = False) -> bool:
        """Wait until an actor is there; end it, and return false, when it is lost, or is not there in time.

        Raises HostBroken, with ``raises`` every HostLost.
        """
        try:
            async with asyncio.timeout(seconds_max):
                await host.look()
        except (HostLost, TimeoutError) as error:
            self.lost(host)
            if raises or isinstance(error, HostBroken):
                raise
            return False
        except BaseException:
            host.end()
            raise
        return True

    def _placed(self, spec: WorkerSpec) -> Host:
        """Return an actor that Ray is asked to place: apart from others, so that a node's loss costs a role the fewest workers."""
        from foveate.runtime.ray.host import WorkerHost  # what the actor imports the gateway need not, but for the name

        needs = self.needs(spec)
        options: dict[str, Any] = {
            "num_cpus": needs.pop("CPU", 0),
            "num_gpus": needs.pop("GPU", 0),
            "resources": needs,
            "max_restarts": 0,
            "max_task_retries": 0,
            "lifetime": "non_detached",
            **self._where(),
        }
        modules = (*self._preload, spec.entry.partition(":")[0])
        return Host(ray.remote(WorkerHost).options(**options).remote(spec.title, self._arena_bytes, modules))

    def _where(self) -> dict[str, Any]:
        """Return where Ray is to place an actor: spread over nodes; after a loss where none was lost, if another node has room."""
        at = now()
        self._avoided = {node: until for node, until in self._avoided.items() if until > at}
        if not self._avoided:
            return {"scheduling_strategy": "SPREAD"}
        anywhere: dict[str, str] = {}
        # Not spread: for that Ray asks any node to place it, also one that is gone.
        return {
            "label_selector": {_NODE_LABEL: f"!in({', '.join(self._avoided)})"},
            "fallback_strategy": [{"label_selector": anywhere}],
        }

    def lost(self, host: Host) -> None:
        """End an actor that cannot be reached, and place others elsewhere for a while: its node may be gone, whatever Ray believes."""
        if host.node:
            self._avoided[host.node] = now() + _AVOIDED_SECONDS
        host.end()

    def keep(self, spec: WorkerSpec, host: Host) -> None:
        """Keep the actor of a worker that died by itself for a while."""
        self.drop(spec)
        timer = asyncio.get_running_loop().call_later(_KEPT_SECONDS, self.drop, spec)
        self._kept[_seat(spec)] = host, timer

    def drop(self, spec: WorkerSpec) -> None:
        """End the actor that is kept for this worker's successor, if there is one."""
        kept = self._kept.pop(_seat(spec), None)
        if kept is not None:
            kept[1].cancel()
            kept[0].end()

    def close(self) -> None:
        """End those that are kept."""
        for host, timer in self._kept.values():
            timer.cancel()
            host.end()
        self._kept.clear()


def _seat(spec: WorkerSpec) -> tuple[str, str, int]:
    """What a worker has in common with its successor: one that needs another node is none."""
    return spec.role, spec.needs, spec.index


async def _answer(reference: Any) -> Any:
    try:
        return await reference
    except RayError as error:
        kind = HostBroken if getattr(error, "actor_init_failed", False) else HostLost
        raise kind(f"{type(error).__name__}: {getattr(error, 'cause', None) or error}") from error
