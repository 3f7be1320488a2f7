"""Certificates for pools that are served with TLS."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from paragent import TlsConf

if TYPE_CHECKING:
    from pathlib import Path


def certify(folder: Path, address: str) -> TlsConf:
    """Create a self-signed certificate for an IP address and return its settings."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", "key.pem", "-out", "cert.pem", "-days", "2"),
            *("-subj", "/CN=pool", "-addext", f"subjectAltName=IP:{address}"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return TlsConf(cert=str(folder / "cert.pem"), key=str(folder / "key.pem"))
