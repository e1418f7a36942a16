"""Upstreams as flags name them."""

from __future__ import annotations

import pytest

from foveate.settings.upstreams import UpstreamSettings


@pytest.mark.parametrize("url", ["ftp://gpu1:8000", "gpu1:8000", "http://user@gpu1", "http://gpu1/?key=1"])
def test_what_is_no_servers_url_is_told_in_words(url: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a URL like http://host:8000"):
        UpstreamSettings(urls=(url,)).all()


def test_a_base_url_of_openais_clients_is_the_servers_root() -> None:
    (server,) = UpstreamSettings(urls=("http://gpu1:8000/v1/",)).all()
    assert (server.url, server.label) == ("http://gpu1:8000", "gpu1:8000")
