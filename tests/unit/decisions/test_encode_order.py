"""The order of pictures before the encode workers: short requests first, none starved, tenants by turns, batches within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.decisions.encode_order import PASSED_MAX, BatchBounds, WaitingPicture, choose

ALONE = BatchBounds(1, 10**9)


@dataclass(eq=False)
class Item:
    """``worker``: the only one that it is open to."""

    tenant: str
    request: str
    tokens: int = 100
    shape: str = "a"
    worker: int = 0
    passed_over: int = 0


def view(items: list[Item], worker: int = 0) -> list[WaitingPicture]:
    sizes: Counter[tuple[str, str]] = Counter()
    for item in items:
        sizes[item.tenant, item.request] += item.tokens
    return [
        WaitingPicture(
            one.tenant, one.tokens, sizes[one.tenant, one.request], one.shape, one.passed_over, one.worker == worker
        )
        for one in items
    ]


class Server:
    """Encodes one batch after another."""

    def __init__(self, bounds: BatchBounds = ALONE) -> None:
        self.bounds = bounds
        self.waiting: list[Item] = []
        self.given: Mapping[str, float] = {}

    def step(self, worker: int = 0) -> list[Item]:
        choice = choose(view(self.waiting, worker), self.given, self.bounds)
        self.given = choice.given
        if choice.passed_over is not None:
            self.waiting[choice.passed_over].passed_over += 1
        batch = [self.waiting[index] for index in choice.indices]
        for item in batch:
            self.waiting.remove(item)
        return batch


def test_a_single_picture_passes_a_long_request_at_once() -> None:
    server = Server()
    server.waiting = [Item("t", "batch") for _ in range(16)]
    assert server.step()[0].request == "batch"
    server.waiting.append(Item("t", "single"))
    assert server.step()[0].request == "single"


@settings(deadline=None)
@given(jobs=st.integers(1, 6), before=st.integers(0, 20))
def test_a_single_picture_waits_for_one_batch_of_longer_requests_however_many_there_are(jobs: int, before: int) -> None:
    server = Server()
    server.waiting = [Item("t", f"job {number % jobs}") for number in range(16 * jobs)]
    for number in range(before):
        server.waiting.append(Item("t", f"earlier {number}"))
        server.step()
    shorts = sum(item.request.startswith("earlier") for item in server.waiting)
    server.waiting.append(Item("t", "single"))
    longer = 0
    while (batch := server.step())[0].request != "single":
        longer += batch[0].request.startswith("job")
    assert longer <= 1 + shorts // PASSED_MAX


def test_a_long_request_has_its_share_however_many_short_ones_come() -> None:
    server = Server()
    server.waiting = [Item("t", "job") for _ in range(5)]
    done: Counter[bool] = Counter()
    for number in range(20):
        server.waiting.append(Item("t", f"short {number}"))
        done[server.step()[0].request == "job"] += 1
    assert done[True] == 20 // (PASSED_MAX + 1)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(50, 400), min_size=2, max_size=5),
    steps=st.integers(20, 80),
)
def test_tenants_with_work_get_equal_tokens(sizes: list[int], steps: int) -> None:
    server = Server()
    names = [f"tenant {number}" for number in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        server.waiting += [Item(name, f"r{number}", size) for number in range(100)]
    served: Counter[str] = Counter()
    for _ in range(steps):
        (item,) = server.step()
        served[item.tenant] += item.tokens
    assert max(served.values()) - min(served[name] for name in names) <= 2 * max(sizes)


def test_a_new_tenant_is_next_and_does_not_catch_up() -> None:
    server = Server()
    server.waiting = [Item("old", f"r{number}") for number in range(50)]
    for _ in range(20):
        server.step()
    server.waiting += [Item("new", f"r{number}") for number in range(50)]
    order = [server.step()[0].tenant for _ in range(10)]
    assert order[:2].count("new") == 1
    assert order.count("new") == 5


def test_what_a_tenant_had_of_one_worker_counts_at_the_next() -> None:
    server = Server()
    server.waiting = [Item("crowd", f"r{number}", worker=number % 2) for number in range(40)]
    for _ in range(3):
        server.step(0)
        server.step(1)
    server.waiting.append(Item("one", "r", worker=1))
    server.step(0)  # has nothing of this tenant, and must not forget what others had before it came
    assert server.step(1)[0].tenant == "one"


def test_a_long_request_has_its_share_of_a_worker_whatever_others_are_given() -> None:
    server = Server()
    server.waiting = [Item("t", "job") for _ in range(5)]
    done: Counter[bool] = Counter()
    for number in range(20):
        server.waiting += [Item("t", f"short {number}"), Item("u", f"elsewhere {number}", worker=1)]
        done[server.step(0)[0].request == "job"] += 1
        server.step(1)
    assert done[True] == 20 // (PASSED_MAX + 1)


def test_a_batch_has_pictures_of_one_shape_of_any_tenant_within_bounds() -> None:
    server = Server(BatchBounds(3, 250))
    server.waiting = [Item("t", "1"), Item("t", "2", shape="b"), Item("u", "3"), Item("t", "4"), Item("t", "5")]
    assert [item.request for item in server.step()] == ["1", "3"], "a third would be too many tokens"
    server.bounds = BatchBounds(1, 50)
    assert len(server.step()) == 1, "a single one may have more tokens than a batch"


@settings(max_examples=50, deadline=None)
@given(
    items=st.lists(
        st.builds(
            Item, st.sampled_from("abc"), st.sampled_from("1234"), st.integers(1, 500), st.sampled_from("xy")
        ),
        min_size=1, max_size=30,
    ),
    bounds=st.builds(BatchBounds, st.integers(1, 8), st.integers(1, 2000)),
)  # fmt: skip
def test_everything_is_encoded_once_in_batches_within_bounds(items: list[Item], bounds: BatchBounds) -> None:
    given_: Mapping[str, float] = {}
    waiting, seen = list(enumerate(items)), list[tuple[int, Item]]()
    while waiting:
        choice = choose(view([item for _, item in waiting]), given_, bounds)
        given_ = choice.given
        batch = [waiting[index] for index in choice.indices]
        assert 1 <= len(batch) <= bounds.pictures_max
        assert len({item.shape for _, item in batch}) == 1
        seen += batch
        waiting = [entry for entry in waiting if entry not in batch]
        assert set(given_) <= {item.tenant for item in items}, "nothing is remembered of those who are gone"
    assert len(seen) == len(items)


def test_nothing_waits() -> None:
    with pytest.raises(ValueError, match="nothing"):
        choose([], {}, ALONE)
    with pytest.raises(ValueError, match="nothing"):
        choose(view([Item("t", "r", worker=1)], worker=0), {}, ALONE)
