"""The vision encoder as a service: a bounded queue of pictures in front of one vision tower.

:mod:`messages` is what crosses the process boundary and needs no torch; :mod:`worker` runs in whatever process holds
the vision weights (the engine's when aggregated, an encode worker otherwise).
"""
