"""`paragent pool` and `paragent vm` as a person calls them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent import PoolClient
from paragent.cli import main
from paragent.machines.images import Image, image_folder
from tests.waiting import wait_until

PARAGENT = [sys.executable, "-m", "paragent"]


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*PARAGENT, "pool", "serve", "--provider-name", "process", "--num-vms", "2", "--name", "by-command"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "is served at" in line
    yield process, line.split()[-1]
    process.kill()
    process.communicate(timeout=60)


def test_a_pool_is_served_shown_and_drained(
    served: tuple[subprocess.Popen[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    process, address = served
    with PoolClient(address) as client:
        lease = client.allocate(timeout=90)
        assert main(["pool", "status", "--pool", address]) == 0
        shown = capsys.readouterr().out
        assert "by-command: process, 2 machines and 1 spare, 0 waiting" in shown
        assert "leased" in shown
        assert main(["pool", "status", "--json", "--pool", address]) == 0
        rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["machines"]}
        assert (rows[lease.machine.id]["state"], rows[lease.machine.id]["resets"]) == ("leased", 0)
        log = f"/proc/{lease.machine.details['pid']}/fd/2"
        lease.machine.execute(["sh", "-c", f"printf '\\033[31mwarning\n' >> {log}"])
        assert main(["pool", "log", lease.machine.id, "--pool", address]) == 0
        assert capsys.readouterr().out.endswith("[31mwarning\n")
        assert main(["pool", "retire", "m99", "--pool", address]) == 2
        assert "no live machine" in capsys.readouterr().err
        assert main(["pool", "retire", lease.machine.id, "--pool", address]) == 0
        assert main(["pool", "drain", "--pool", address]) == 0
        wait_until(lambda: client.status().draining)
        lease.release()
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert "drained" in out


@pytest.mark.slow
def test_ctrl_c_ends_machines(served: tuple[subprocess.Popen[str], str]) -> None:
    process, address = served
    with PoolClient(address) as client:
        client.allocate(timeout=90)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert "all machines have ended" in out


def test_a_pool_must_be_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARAGENT_POOL", raising=False)
    assert main(["pool", "status"]) == 2
    assert "--pool HOST:PORT" in capsys.readouterr().err


def test_a_pool_is_never_served_without_the_tls_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").write_text("an authority")
    served = ["pool", "serve", "--provider-name", "process", "--num-vms", "1", "--name", "half-tls"]
    assert main([*served, "--tls-ca", str(tmp_path / "ca.pem")]) == 2
    assert "a TLS server needs a certificate" in capsys.readouterr().err


def test_a_pool_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pool", "status", "--pool", "127.0.0.1:1"]) == 1
    assert "no pool answers at 127.0.0.1:1; start one there with: paragent pool serve" in capsys.readouterr().err


def test_a_step_to_an_image_is_shown_as_such_and_not_offered_to_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path))
    for name in ("screen", "screen-base"):
        image_folder(name).mkdir(parents=True)
        Image(name, image_folder(name), "key").write()
    assert main(["vm", "list"]) == 0
    assert "part of screen" in capsys.readouterr().out
    assert main(["vm", "shell", "--path-to-vm", "screen-base"]) == 2
    assert "is neither a file nor a built image; images: desktop, screen, tiny" in capsys.readouterr().err
    assert main(["vm", "rm", "screen"]) == 0
    assert not list(tmp_path.glob("images/screen*"))


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.timeout(600)  # the first time the image is built, and a machine without KVM takes long to boot it
def test_images_are_built_listed_and_a_machine_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vm", "build", "tiny"]) == 0
    assert "tiny: " in capsys.readouterr().out
    assert main(["vm", "list"]) == 0
    assert "tiny" in capsys.readouterr().out
    assert main(["vm", "rm", "no-such-image"]) == 2
    assert "there is no image 'no-such-image'" in capsys.readouterr().err
    lines = "uname -n\necho problem >&2\nexit 3\n"
    done = subprocess.run(
        [*PARAGENT, "vm", "shell"], input=lines, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == ("tiny\n", 3), done.stderr
    assert "problem" in done.stderr
