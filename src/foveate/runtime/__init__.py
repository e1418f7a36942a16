"""Where work runs: processes of one machine (``local``), the shared-memory arena, the channel between processes.

Knows nothing of models, media or HTTP.
"""
