"""Prefill and token decode in vLLM processes of their own (P/D): one prefills a prompt, another fetches its keys and values from it.

Which process a request goes to is decided here; the K/V go from vLLM to vLLM (:mod:`foveate.engines.vllm.kv_connector`). While no process
of a role is there, one of the other role answers the whole request.

A process that dies costs its requests nothing before their first token: the prompt is prefilled again, elsewhere or by the process that was
to fetch it. What another may have fetched already is never fetched twice: the process that held it gives it up as soon as it was read.
A request that two processes ended with is given to no third.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from foveate.core.clock import now
from foveate.core.errors import EngineDied, EngineUnavailable, QueueFull
from foveate.engines.arrivals import Arrivals
from foveate.engines.deaths import Deaths
from foveate.engines.fleet import Fleet
from foveate.engines.member import Member
from foveate.engines.port import EngineEvent, EngineWork, Role
from foveate.engines.prompt_chain import chain
from foveate.engines.vllm.client import Held, VllmEngine
from foveate.engines.vllm.messages import TokenDecode
from foveate.observe.load import Load


class VllmSplit(Fleet):
    """Implements :class:`foveate.engines.port.Engine` over vLLM processes with roles."""

    def __init__(self, engines: Sequence[VllmEngine], roles: Sequence[Role], load: Load | None = None) -> None:
        """``roles``: one for each engine, as in its configuration. ``load`` is told what went over."""
        super().__init__(engines)
        for member, role in zip(self._members, roles, strict=True):
            member.role = role
        self._load = load or Load()

    def _encoders(self) -> list[Member]:
        return [member for member in self._open() if _vllm(member).encodes]

    async def _generate(self, work: EngineWork, arrivals: Arrivals | None) -> AsyncGenerator[EngineEvent, None]:
        if not self._of("p") or not self._of("d"):
            async with aclosing(super()._generate(work, arrivals)) as events:
                async for event in events:
                    yield event
            return
        deaths = Deaths(work)
        try:
            async with aclosing(self._apart(work, deaths)) as events:
                async for event in events:
                    yield event
        except EngineUnavailable as error:
            raise deaths.told(error) from error

    async def _apart(self, work: EngineWork, deaths: Deaths) -> AsyncGenerator[EngineEvent, None]:
        """Have the prompt prefilled by one process and its tokens drawn by another."""
        asked, failed = now(), list[Member]()
        while True:
            held = await self._held(work, asked, deaths)
            begun = False
            try:
                async with aclosing(self._draw(work, asked, held, failed)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except EngineDied as error:
                deaths.count(error)
                if begun or not self._of("d", failed):
                    raise

    def _of(self, role: Role, passed_over: Sequence[Member] = ()) -> list[Member]:
        return [member for member in self._open() if member.role == role and member not in passed_over]

    async def _held(self, work: EngineWork, asked: float, deaths: Deaths) -> Held | None:
        """Have the prompt prefilled. None for one that whoever draws the tokens prefills itself: vLLM reads no K/V where the prompt's
        log-probabilities are asked for, and computes all of it.
        """
        if work.sampling.prompt_logprobs is not None:
            return None
        held = await self._prefill(work, asked, deaths)
        self._load.handed_on(self.info.kv_bytes_per_token * len(work.token_ids))
        return held

    async def _draw(
        self, work: EngineWork, asked: float, held: Held | None, failed: list[Member]
    ) -> AsyncGenerator[EngineEvent, None]:
        """Have the tokens drawn by a process that is not among ``failed``, or by another when it has no place. One that dies is added."""
        tried = list(failed)
        while True:
            able = self._of("d", tried)
            if not able:
                _leave(held)
            member = self._choose(able, float(len(work.token_ids)))
            try:
                async with aclosing(self._go_on(member, work, asked, held)) as events:
                    async for event in events:
                        held = None  # it was read
                        yield event
                return
            except EngineDied:
                failed.append(member)
                _leave(held)
                raise
            except asyncio.CancelledError:
                _leave(held)  # whoever was to read it may have died meanwhile, or have had no place
                raise
            except (EngineUnavailable, QueueFull):  # before the first event only, of one that has not looked at it
                tried.append(member)
                if not self._of("d", tried):
                    _leave(held)
                    raise

    async def _prefill(self, work: EngineWork, asked: float, deaths: Deaths) -> Held:
        """Have a process prefill the prompt; another one when it dies or has no place. Raises what the last one did."""
        links = chain(work, self.info.picture_token_id)
        tried: list[Member] = []
        weight = float(len(work.token_ids))
        while True:
            member = self._choose(self._of("p", tried), weight, links)
            member.memory.note(links)
            member.answering.begin(weight)
            try:
                return await _vllm(member).prefill(work, submitted_at=asked)
            except (EngineDied, EngineUnavailable, QueueFull) as error:
                deaths.count(error)
                tried.append(member)
                if not self._of("p", tried):
                    raise
            finally:
                member.answering.end(weight)

    async def _go_on(
        self, member: Member, work: EngineWork, asked: float, held: Held | None
    ) -> AsyncGenerator[EngineEvent, None]:
        engine = _vllm(member)
        answer = engine.generate(work) if held is None else engine.go_on(TokenDecode(work, asked, held.prefilled))
        member.answering.begin(1.0)
        try:
            async with aclosing(answer) as events:
                async for event in events:
                    yield event
        finally:
            member.answering.end(1.0)


def _leave(held: Held | None) -> None:
    """Have K/V given up that nobody will read."""
    if held is not None and not held.lost:
        held.holder.let_go(held.prefilled.request_id)


def _vllm(member: Member) -> VllmEngine:
    assert isinstance(member.engine, VllmEngine)
    return member.engine
