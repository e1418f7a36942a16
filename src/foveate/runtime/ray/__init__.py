"""Worker processes on the nodes of a Ray cluster. The only code that knows Ray.

A worker's process is held by an actor on its node (:mod:`~foveate.runtime.ray.host`), which Ray places; the process itself is
started, bounded and ended there as by :mod:`foveate.runtime.local`. The gateway's end is
:class:`~foveate.runtime.ray.worker.RayWorker`. Each actor has an arena of the same size as the gateway's, in which a slot lies where
it lies in the gateway's: the bytes that a message names (:mod:`foveate.runtime.named_bytes`) are copied there and back.
"""
