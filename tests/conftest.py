"""What holds for every test of the project."""

import signal

# A shell without job control starts its background jobs with Ctrl-C ignored, and an ignored signal stays ignored in every child:
# a test that interrupts a process of its own would wait for ever, depending on how the tests were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
