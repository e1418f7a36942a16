"""Values only: requests, media, errors, stages, memory, clock.

Imports the standard library and msgspec, and nothing of ours. Nothing here does I/O, waits, or can fail except by refusing a value.
"""
