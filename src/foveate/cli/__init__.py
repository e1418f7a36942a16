"""The ``foveate`` command, one file a subcommand."""
