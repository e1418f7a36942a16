"""A client's name for content means that content, until it is forgotten."""

import pytest

from foveate.caches.aliases import Aliases
from foveate.core.errors import MediaIdConflict

RED, BLUE = "1" * 64, "2" * 64


def test_a_name_binds_then_verifies() -> None:
    aliases = Aliases(10)
    aliases.bind("picture", RED)
    aliases.bind("picture", RED)
    aliases.bind("copy", RED)
    with pytest.raises(MediaIdConflict) as caught:
        aliases.bind("picture", BLUE)
    assert RED not in caught.value.public
    assert "picture" not in caught.value.detail
    aliases.bind("picture", RED)
    assert len(aliases) == 2


def test_the_name_used_longest_ago_goes_first() -> None:
    aliases = Aliases(2)
    aliases.bind("a", RED)
    aliases.bind("b", RED)
    aliases.bind("a", RED)
    aliases.bind("c", RED)
    assert len(aliases) == 2
    aliases.bind("b", BLUE)
    with pytest.raises(MediaIdConflict):
        aliases.bind("c", BLUE)
