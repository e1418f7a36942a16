"""Stop strings against the obvious search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.engines.embedded.stop_strings import StopStrings


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3)
)
def test_streamed_equals_searched(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    places = [whole.find(stop) for stop in stops if stop in whole]
    matcher = StopStrings(stops)
    sent = ""
    for index, piece in enumerate(pieces):
        text, stopped = matcher.feed(piece)
        sent += text
        seen = "".join(pieces[: index + 1])
        assert stopped == any(stop in seen for stop in stops)
        if stopped:
            # Of several stops in what has arrived, the one that begins first ends the text.
            assert sent == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
            return
        assert len(seen) - len(sent) < max([1, *map(len, stops)]), "no more is held back than could matter"
    assert not places
    assert sent + matcher.flush() == whole


@pytest.mark.parametrize(
    ("pieces", "sent"),
    [
        (["Hel", "lo\n", "\nmore"], ["Hel", "lo", ""]),
        (["a\n", "b"], ["a", "\nb"]),
        (["\n\n"], [""]),
    ],
)
def test_across_tokens(pieces: list[str], sent: list[str]) -> None:
    matcher = StopStrings(["\n\n"])
    assert [matcher.feed(piece)[0] for piece in pieces] == sent


def test_an_empty_stop_string_stops_nothing() -> None:
    assert StopStrings([""]).feed("text") == ("text", False)
