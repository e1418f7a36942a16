"""Pure choices shared by the server and the simulator: no clock, no I/O, no await. Same input, same choice."""
