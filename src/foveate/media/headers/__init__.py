"""What the first bytes of an image file say. One module a family of formats; pure Python, bounded, no pixel is touched.

Every ``read_*`` takes the whole file and returns an :class:`~foveate.core.media.ImageHeader`. On damaged data they
may raise ValueError, IndexError or struct.error, which :func:`foveate.media.probe.probe` turns into an answer.
"""
