"""What `holdfast` runs: outside of the package, so that Ctrl-C while that is imported is quiet."""

import sys


def main() -> None:
    """Import the command line and run it; it exits with its code, or 130 if it is interrupted."""
    try:
        from holdfast.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
