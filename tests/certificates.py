"""Certificates for loopback that nobody has signed."""

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    paths = folder / "server.pem", folder / "server.key"
    asked = ["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-newkey", "ec"]
    asked += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-addext"]
    asked.append("subjectAltName=IP:127.0.0.1")
    places = ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(["openssl", *asked, *places], check=True, capture_output=True)
    return paths
