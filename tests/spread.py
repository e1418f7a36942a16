"""How tests are spread over processes that run at once (``make test``, or ``pytest -n 2 --dist loadgroup``).

The tests of a file run in one process, one after the other, and so do those of one ``xdist_group``: what shares a server, or a cluster of
which a machine can have one. The group :data:`ALONE` begins when all other tests have ended, for those that load the whole machine or look
at what is the machine's and not theirs.
"""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

ALONE = "alone"


class Spread(LoadGroupScheduling):
    """Hands out files and groups in the order in which they were collected, and :data:`ALONE` last."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the group of a test, or else its file."""
        return super()._split_scope(nodeid).partition("::")[0]

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
