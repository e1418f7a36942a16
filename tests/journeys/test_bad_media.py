"""Media that cannot be decoded: one attempt, told to everyone who waits, not tried again for a moment, and no other failure kept."""

import asyncio
import base64
from collections.abc import Callable

import pytest
from tests.journeys.asking import BLUE, RED, ask, by, data_of, picture, request, settled

from foveate.caches.bad_media import BadMedia
from foveate.core.errors import FoveateError, MediaUndecodable, QueueFull
from foveate.core.media import DataRef
from foveate.journey.service import Journey

pytestmark = pytest.mark.asyncio(loop_scope="session")


def damaged(colour: tuple[int, int, int]) -> DataRef:
    """A PNG whose header is right and whose pixels are not."""
    data = bytearray(data_of(picture(colour)))
    at = data.index(b"IDAT") + 4
    data[at : at + 40] = bytes(40)
    return DataRef("data:image/png;base64," + base64.b64encode(data).decode())


class Jobs:
    """Counts the jobs that media workers get."""

    def __init__(self, service: Journey) -> None:
        self.done = 0
        self._media = service.tools.roll_out.stable.media
        self._run = self._media.run

    async def run(self, *job: object, **options: object) -> object:
        self.done += 1
        return await self._run(*job, **options)  # type: ignore[arg-type]


@pytest.fixture
def jobs(service: Journey, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    counted = Jobs(service)
    monkeypatch.setattr(service.tools.roll_out.stable.media, "run", counted.run)
    return counted


async def refusal(service: Journey, ref: DataRef, tenant: str = "anyone") -> FoveateError:
    with pytest.raises(FoveateError) as caught:
        await ask(service, by(request(ref), tenant))
    return caught.value


async def test_all_who_wait_are_told_and_nobody_tries_again_for_a_moment(service: Journey, jobs: Jobs) -> None:
    bad = damaged(RED)
    before = service.caches().report().bad_media
    errors = await asyncio.gather(*(refusal(service, bad) for _ in range(8)))
    again = await refusal(service, bad)
    assert {type(error) for error in (*errors, again)} == {MediaUndecodable}
    assert jobs.done == 1
    assert len({id(error) for error in errors}) == 8, "each has an error of its own to complete"
    assert again.param == errors[0].param == "messages[0].content[0].image_url"
    after = service.caches().report().bad_media
    assert after.refusals - before.refusals >= 1
    assert after.contents >= 1
    await settled(service)


async def test_after_that_moment_it_is_tried_again(
    service: Journey, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    kept = BadMedia(5.0)
    find, note = kept.find, kept.note
    monkeypatch.setattr(service.tools.bad_media, "find", lambda key, at: find(key, clock[0]))
    monkeypatch.setattr(service.tools.bad_media, "note", lambda key, error, at: note(key, error, clock[0]))
    bad = damaged(BLUE)
    for seconds, expected in ((0.0, 1), (4.9, 1), (5.1, 2)):
        clock[0] = 100.0 + seconds
        await refusal(service, bad)
        assert jobs.done == expected


async def test_what_a_worker_had_no_room_for_is_no_fault_of_the_picture(
    service: Journey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(job: object, *, on_done: Callable[[], None], **options: object) -> object:
        await asyncio.sleep(0.05)
        on_done()
        raise QueueFull

    good = picture(RED)
    with monkeypatch.context() as patched:
        patched.setattr(service.tools.roll_out.stable.media, "run", full)
        errors = await asyncio.gather(*(refusal(service, good) for _ in range(4)))
    assert {type(error) for error in errors} == {QueueFull}
    assert (await ask(service, request(good))).text == "A red circle."
    await settled(service)


async def test_a_tenant_that_shares_nothing_learns_nothing_of_others_bad_media(service: Journey, jobs: Jobs) -> None:
    bad = damaged(BLUE)
    limits = service.tools.limits
    object.__setattr__(limits, "caches_per_tenant", True)
    try:
        for tenant, expected in (("a", 1), ("b", 2), ("a", 2), ("b", 2)):
            await refusal(service, bad, tenant)
            assert jobs.done == expected
    finally:
        object.__setattr__(limits, "caches_per_tenant", False)
