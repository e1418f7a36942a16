"""``foveate bench``: ratios measured in one run, both sides of each interleaved, with their spread. Asserts nothing: it prints.

Drives a server it starts itself over its public API; calls product code directly only where the comparison is with that very code.
"""
