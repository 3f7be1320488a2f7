"""Leasing from another host: a pool with TLS, a client in a network namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from paragent import ParagentError, PoolClient, VMPoolManager
from tests.engines.machines import machines
from tests.machines.certificates import certify

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef" * 4

WORKER = """
import sys
from paragent import PoolClient, TlsConf
address, ca = sys.argv[1:]
with PoolClient(address, tls=TlsConf(ca=ca)) as pool, pool.lease(timeout=60) as machine:
    print(machine.execute(["echo", "from afar"]).output.strip(), machine.host)
"""


def test_a_worker_on_another_host_leases_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAGENT_TOKEN", TOKEN)
    with machines(1, tmp_path) as (here, there):
        served = certify(tmp_path, here.address)
        with VMPoolManager("process", 1, name="other-hosts", host=here.address) as pool:
            address = str(pool.serve(here.address, tls=served).address)
            worker = subprocess.run(
                [*there.prefix, sys.executable, "-c", WORKER, address, str(served.cert)],
                env={**os.environ, "PARAGENT_TOKEN": TOKEN},
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert worker.stdout.split() == ["from", "afar", here.address], worker.stderr
            with PoolClient(address, reconnect=0.5) as plain, pytest.raises(ParagentError):
                plain.status()
