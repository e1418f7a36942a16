"""Files that an engine core holds open: checked, shared, and closed when nobody can need them any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foveate.engines.embedding_file import EmbeddingFault, EmbeddingHeader, digest_of, open_file, write_file
from foveate.engines.vllm.pins import Pins, Sought

SOUGHT = Sought("red", "red", 2, 3, (1, 2, 4))


class Store:
    """A directory of files, and what was opened in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, *, rows: int = 2, width: int = 3, fill: bytes = b"\1") -> None:
        header = EmbeddingHeader(digest_of(name), "float32", rows, width, (1, 2, 4))
        fd = os.open(self.root / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        write_file(fd, header, memoryview(fill * header.data_bytes))
        os.close(fd)

    def open(self, name: str) -> int:
        return open_file(str(self.root / name))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def pins() -> Pins:
    return Pins(checksum=False)


def still_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_file_is_there_when_it_is_and_held_then(pins: Pins, store: Store) -> None:
    assert not pins.hold(SOUGHT, "a", store.open)
    store.put("red")
    assert pins.hold(SOUGHT, "a", store.open)
    (store.root / "red").unlink()
    assert pins.hold(SOUGHT, "b", store.open), "another request may still use it"
    pin = pins.load("red")
    assert pin is not None
    assert Path(pin.path).read_bytes()[-4:] == b"\1\1\1\1"


@pytest.mark.parametrize(
    ("rows", "width", "grid"),
    [(3, 3, (1, 2, 4)), (1, 3, (1, 2, 4)), (2, 4, (1, 2, 4)), (2, 3, (1, 4, 2)), (2, 3, None)],
)
def test_one_that_does_not_fit_fails_its_request_alone(
    pins: Pins, store: Store, rows: int, width: int, grid: tuple[int, int, int] | None
) -> None:
    store.put("red")
    wrong = Sought("red", "red", rows, width, grid)
    with pytest.raises(EmbeddingFault):
        pins.hold(wrong, "a", store.open)
    assert len(pins) == 0
    assert pins.hold(SOUGHT, "b", store.open)
    with pytest.raises(EmbeddingFault):
        pins.hold(wrong, "c", store.open)
    pins.leave("red", "c")
    assert len(pins) == 1


def test_it_is_closed_with_its_last_user(pins: Pins, store: Store) -> None:
    store.put("red")
    for user in ("a", "b", "b"):
        assert pins.hold(SOUGHT, user, store.open)
    pin = pins.get("red")
    assert pin is not None
    pins.leave("red", "a")
    assert still_open(pin.fd)
    pins.leave("red", "b")
    assert not still_open(pin.fd)
    assert len(pins) == 0
    pins.leave("red", "b")


def test_a_cancelled_request_s_file_stays_until_the_step_that_loads_it_has_run(pins: Pins, store: Store) -> None:
    store.put("red")
    pins.step_built()
    assert pins.hold(SOUGHT, "a", store.open)
    pin = pins.load("red")
    assert pin is not None
    pins.step_built()
    pins.leave("red", "a")
    assert pins.get("red") is None, "no new step loads it"
    pins.step_ended()
    assert still_open(pin.fd), "the first step ended; the second loads it"
    pins.step_ended()
    assert not still_open(pin.fd)


def test_a_file_that_was_replaced_is_read_as_it_was_checked(pins: Pins, store: Store) -> None:
    store.put("red")
    assert pins.hold(SOUGHT, "a", store.open)
    (store.root / "red").unlink()
    store.put("red", rows=7, fill=b"\2")
    pin = pins.load("red")
    assert pin is not None
    assert Path(pin.path).read_bytes()[-1:] == b"\1"


def test_everything_is_closed_at_the_end(pins: Pins, store: Store) -> None:
    for name in ("red", "blue"):
        store.put(name)
        assert pins.hold(Sought(name, name, 2, 3, (1, 2, 4)), "a", store.open)
    opened = [pins.get(name) for name in ("red", "blue")]
    pins.close()
    assert not any(still_open(pin.fd) for pin in opened if pin is not None)
