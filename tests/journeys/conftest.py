"""The assembled inside of the server, with real workers, without HTTP. One for all tests of this folder: it takes seconds to start."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.forked import forked_forkservers

from foveate.assembly import journey
from foveate.journey.service import Journey
from foveate.settings import load


@pytest.fixture(scope="session", autouse=True)
def _forked_forkservers() -> Iterator[None]:
    with forked_forkservers():
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service() -> AsyncIterator[Journey]:
    flags = {
        "log.requests": "off",
        "fetch.http_allowed": "true",
        "fetch.private_networks": "127.0.0.0/8",
        "media.workers": "2",
        "media.client_embeddings": "true",
        "engine.threads": "1",
    }
    async with journey(load(flags), say=lambda text: None) as built:
        yield built
