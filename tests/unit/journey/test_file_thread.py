"""Who waits for a file waits until a deadline; what the thread holds is given back when the thread is through."""

import threading

import pytest

from foveate.core.clock import now
from foveate.journey.file_thread import FileThread


async def test_work_is_done_in_order_and_its_result_or_error_comes_back() -> None:
    done: list[str] = []
    async with FileThread(now() + 60) as thread:
        thread.last(lambda: done.append("last"))
        thread.last(lambda: done.append("before the last"))
        assert await thread.do(lambda: done.append("first") or 1, through=lambda: done.append("through")) == 1
        with pytest.raises(OSError, match="no such"):
            await thread.do(_fail, through=lambda: done.append("through"))
    assert done == ["first", "through", "through", "before the last", "last"]


def _fail() -> None:
    raise FileNotFoundError("no such file")


async def test_a_disk_that_hangs_is_left_to_itself_and_what_it_holds_comes_back_when_it_wakes() -> None:
    wake, ended = threading.Event(), threading.Event()
    through: list[str] = []
    async with FileThread(now() + 0.05) as thread:
        thread.last(ended.set)
        with pytest.raises(TimeoutError):
            await thread.do(wake.wait, through=lambda: through.append("through"))
        assert not through
        # After the deadline nothing is begun.
        with pytest.raises(TimeoutError):
            await thread.do(lambda: through.append("begun"), through=lambda: through.append("not begun"))
        wake.set()
    assert ended.is_set()
    assert through == ["not begun", "through"]
