"""The engine for production: vLLM's ``AsyncLLM`` in a process of ours, with Foveate's own vision encoder beside it.

:mod:`client` and :mod:`config` are the gateway's side and import no vLLM. Inside the process: :mod:`process` (entry point),
:mod:`host` (requests in, events out), :mod:`pictures` and :mod:`sampling` (our values as vLLM's), :mod:`executor` (what runs in
vLLM's own processes), :mod:`versions` (which vLLM, and whether its interfaces are there).

Pictures go in as embeddings, with their placeholders already expanded: vLLM's processor and vision tower do nothing.
"""
