"""Whether a server is asked."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.decisions.health import Health, answered, failed, looked_well, share


def test_new_servers_are_up_after_the_first_good_look_and_whole_at_once() -> None:
    assert share(Health(), 5.0, 10.0) == 0
    up = looked_well(Health(), 5.0)
    assert (up.up, share(up, 5.0, 10.0)) == (True, 1.0)


def test_failures_in_a_row_leave_it_out_and_an_answer_ends_the_row() -> None:
    up = looked_well(Health(), 5.0)
    twice = failed(failed(up, 6.0, failures_max=3), 7.0, failures_max=3)
    assert twice.up
    assert failed(answered(twice), 8.0, failures_max=3).up
    assert not failed(twice, 8.0, failures_max=3).up


def test_nobody_there_is_enough_at_once() -> None:
    assert not failed(looked_well(Health(), 5.0), 6.0, failures_max=3, gone=True).up


def test_only_a_look_brings_it_back_and_its_share_grows() -> None:
    down = failed(looked_well(Health(), 5.0), 6.0, failures_max=1)
    assert not answered(down).up
    back = looked_well(down, 20.0)
    assert [round(share(back, at, 10.0), 3) for at in (20.0, 25.0, 30.0)] == [0.1, 0.55, 1.0]


@given(st.lists(st.sampled_from(["answered", "well", "failed", "gone"]), max_size=60))
def test_it_is_up_exactly_when_a_good_look_was_not_followed_by_enough_failures(events: list[str]) -> None:
    found, row, up = Health(), 0, False
    for at, event in enumerate(events, start=1):
        if event == "answered":
            found, row = answered(found), 0
        elif event == "well":
            found, row, up = looked_well(found, at), 0, True
        else:
            found, row = failed(found, at, failures_max=3, gone=event == "gone"), row + 1
            up = up and row < 3 and event != "gone"
        assert found.up == up
