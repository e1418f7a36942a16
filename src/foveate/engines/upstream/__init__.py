"""Servers behind this one (vLLM, SGLang, Dynamo, a second Foveate, any OpenAI-compatible one), as an engine that is asked over HTTP.

``relay`` chooses and retries, ``server`` is what is known of one of them, ``http`` talks, ``body`` and ``frames`` write and read.
The choice itself is pure: :mod:`foveate.decisions.routing`.
"""
