"""A client's name for content means that content within its tenant, until it is forgotten."""

import pytest

from foveate.caches.aliases import Aliases, Content
from foveate.core.errors import MediaIdConflict
from foveate.core.media import ImageHeader

RED = Content("1" * 64, ImageHeader("png", 30, 30))
BLUE = Content("2" * 64)


def test_a_name_binds_then_verifies() -> None:
    aliases = Aliases(10)
    aliases.bind("us", "picture", RED)
    aliases.bind("us", "picture", RED)
    aliases.bind("us", "copy", RED)
    with pytest.raises(MediaIdConflict) as caught:
        aliases.bind("us", "picture", BLUE)
    assert RED.digest not in caught.value.public
    assert "picture" not in caught.value.detail
    aliases.check("us", "picture", RED.digest)
    with pytest.raises(MediaIdConflict):
        aliases.check("us", "picture", BLUE.digest)
    assert aliases.find("us", "picture") == RED
    assert len(aliases) == 2


def test_a_name_belongs_to_its_tenant() -> None:
    aliases = Aliases(10)
    aliases.bind("us", "picture", RED)
    assert aliases.find("them", "picture") is None
    aliases.bind("them", "picture", BLUE)
    assert (aliases.find("us", "picture"), aliases.find("them", "picture")) == (RED, BLUE)


def test_the_name_used_longest_ago_goes_first() -> None:
    aliases = Aliases(2)
    aliases.bind("us", "a", RED)
    aliases.bind("us", "b", RED)
    aliases.find("us", "a")
    aliases.bind("us", "c", RED)
    assert len(aliases) == 2
    assert aliases.find("us", "b") is None
    aliases.bind("us", "b", BLUE)
    assert aliases.listed("us", 10) == (2, [("b", BLUE), ("c", RED)])


def test_a_tenant_with_many_names_crowds_out_its_own() -> None:
    aliases = Aliases(4)
    aliases.bind("them", "theirs", BLUE)
    for number in range(20):
        aliases.bind("us", str(number), RED)
    assert len(aliases) == 4
    assert aliases.find("them", "theirs") == BLUE
    assert aliases.listed("us", 2) == (3, [("19", RED), ("18", RED)])


def test_a_forgotten_name_is_free() -> None:
    aliases = Aliases(4)
    aliases.bind("us", "a", RED)
    assert not aliases.forget("them", "a")
    assert not aliases.forget("us", "b")
    assert aliases.forget("us", "a")
    assert not aliases.forget("us", "a")
    assert (len(aliases), aliases.listed("us", 10)) == (0, (0, []))
    aliases.bind("us", "a", BLUE)
