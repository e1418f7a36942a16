"""Processes of one machine.

::

    gateway ── control socket ──► forkserver   imports the heavy modules once, forks workers in milliseconds
       │                              │ fork
       └───── channel, sentinel ──► worker      messages both ways; the sentinel tells its pid and its end

Nothing here has a name in the file system or in shared memory. The gateway's death ends everything: the channel ends,
and the kernel kills the forkserver with the gateway and the workers with the forkserver.
"""
