"""Bookkeeping of the processor cache and the encoder cache: keys, bytes, leases, eviction.

No payload bytes live here, and neither cache knows the other.
"""
