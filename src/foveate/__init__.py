"""Foveate serves vision-language models so that a request with pictures keeps a tail latency close to a text request's."""

__version__ = "0.1.0"
