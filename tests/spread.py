"""How tests are spread over processes that run at once (``make test``, or ``pytest -n 2 --dist loadscope``).

The tests of a file run in one process, one after the other, and so do those of one ``xdist_group``: what shares a server, or a cluster of
which a machine can have one. The group :data:`ALONE` begins when all other tests have ended, for those that load the whole machine or look
at what is the machine's and not theirs.

pytest-xdist has groups of its own (``loadgroup``), which it writes into the tests' ids; with pytest 9.2 they are lost on the way.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ALONE = "alone"


def tell_groups(worker: Mapping[str, Any], items: Sequence[pytest.Item]) -> None:
    """In a process that runs tests: leave word of which are in a group."""
    marks = {item.nodeid: item.get_closest_marker("xdist_group") for item in items}
    _word_of(worker).write_text(json.dumps({name: mark.args[0] for name, mark in marks.items() if mark}))


def _word_of(worker: Mapping[str, Any]) -> Path:
    return Path(tempfile.gettempdir(), f"groups-{worker['testrunuid']}-{worker['workerid']}.json")


class Spread(LoadScopeScheduling):
    """Hands out files and groups in the order in which they were collected, and :data:`ALONE` last."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """See the base."""
        word = _word_of(node.workerinput)
        self._groups: dict[str, str] = json.loads(word.read_text())
        word.unlink()
        super().add_node_collection(node, collection)

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test, or else its file."""
        return self._groups.get(nodeid, nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        if ALONE in self.workqueue:
            self.workqueue.move_to_end(ALONE)
        if list(self.workqueue) != [ALONE] or not self._others(node):
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process more to do. When only :data:`ALONE` is left, end the others, and with them the servers that they have."""
        others = self._others(node)
        if list(self.workqueue) != [ALONE] or not others:
            super()._reschedule(node)
            return
        another_stays = any(not other.shutting_down for other in others)
        # A process keeps its last test until it hears that there is none behind it.
        if another_stays and not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 1:
            node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        """See the base. Whoever is left over may now do what is to be done alone."""
        crashed = super().remove_node(node)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _others(self, node: WorkerController) -> list[WorkerController]:
        return [other for other in self.nodes if other is not node]
