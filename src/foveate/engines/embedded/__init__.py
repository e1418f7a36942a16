"""The engine that ships with Foveate: transformers models under its own continuous batching.

:mod:`client` is the gateway's side and the only part that a process without torch imports; :mod:`process` is the
worker's entry point. Inside the worker: :mod:`loop` (one thread owns the language model), :mod:`batch_kv`,
:mod:`sampling`, :mod:`detokenize`, :mod:`stop_strings`.

Deliberately absent: reuse of KV between requests, eviction of running requests (their KV is reserved when they start).
"""
