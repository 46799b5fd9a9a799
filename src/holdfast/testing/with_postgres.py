"""Run a command beside a PostgreSQL of its own.

    python -m holdfast.testing.with_postgres COMMAND …

`{url}` in the command's arguments becomes the URL of an empty database, which is gone afterwards.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.testing.postgres import PostgresServer


def main() -> int:
    command = sys.argv[1:]
    if not command:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-postgres-") as folder,
            PostgresServer.start(Path(folder) / "server") as server,
        ):
            return subprocess.call([part.replace("{url}", server.url()) for part in command])
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
