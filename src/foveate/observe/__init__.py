"""What happened to each request and what it cost: ledger, metrics, request log, loop lag.

Writes nothing back into the journey.
"""
