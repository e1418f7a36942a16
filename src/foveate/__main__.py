"""``python -m foveate``."""

from foveate.cli.main import run

if __name__ == "__main__":
    run()
