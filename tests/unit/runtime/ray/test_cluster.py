"""An address without a cluster is told at once, whichever way it was given."""

import socket

import pytest

from foveate.core.errors import StartupError
from foveate.runtime.ray.cluster import ClusterConfig, connect


@pytest.mark.parametrize("by", ["setting", "environment"])
async def test_an_address_where_nobody_listens_is_refused(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests' clusters
        monkeypatch.setenv("RAY_ADDRESS", address if by == "environment" else "")
        with pytest.raises(StartupError) as refused:
            await connect(ClusterConfig("auto" if by == "environment" else address, needs=lambda spec: {}))
    assert f"no Ray cluster at {address}: nobody listens there" in refused.value.public
