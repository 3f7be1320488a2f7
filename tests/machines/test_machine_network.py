"""QEMU machines that attack this host and each other as root, with every network option."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, LeaseLost, Machine, MachineFailed, VMPoolManager
from paragent.machines.cleanup import cache_folder, owned_processes
from paragent.machines.guest_client import GuestRequest, json_body
from paragent.testing.programs import alive
from tests.children import BoundedPopen
from tests.namespaces import ip, network_namespace
from tests.waiting import wait_until

ATTACK = """
import json, socket, struct, sys, time

targets, raw = json.loads(sys.argv[1]), sys.argv[2] == "raw"

def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

def frame(host, port, source_port):
    source, target = socket.inet_aton("10.0.2.15"), socket.inet_aton(host)
    tcp = struct.pack(">HHLLBBHHH", source_port, port, 1, 0, 5 << 4, 2, 65535, 0, 0)
    summed = checksum(source + target + struct.pack(">BBH", 0, 6, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack(">H", summed) + tcp[18:]
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0, source, target)
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    gateway = bytes.fromhex("52550a000202")
    own = bytes.fromhex(open("/sys/class/net/eth0/address").read().strip().replace(":", ""))
    return gateway + own + b"\\x08\\x00" + ip + tcp

reached = []
if raw:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    wire.bind(("eth0", 0))
    for number, (host, port) in enumerate(targets):
        wire.send(frame(host, port, 20000 + number))
    wire.settimeout(0.5)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        try:
            data = wire.recv(2000)
        except OSError:
            continue
        if data[12:14] == b"\\x08\\x00" and data[23] == 6 and data[47] & 0x12 == 0x12:
            reached.append(targets[struct.unpack(">H", data[36:38])[0] - 20000])
else:
    for host, port in targets:
        try:
            with socket.create_connection((host, port), 2) as connection:
                connection.settimeout(2)
                connection.sendall(b"GET /platform HTTP/1.0\\r\\n\\r\\n")
                if connection.recv(100):
                    reached.append([host, port])
        except OSError:
            pass
print(json.dumps(reached))
"""


@contextmanager
def service_of_this_host(address: str) -> Iterator[tuple[int, list[Any]]]:
    """Listen on this host; yield the port and the list of clients."""
    came: list[Any] = []
    with socket.create_server((address, 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, peer = listener.accept()
                except OSError:
                    return
                came.append(peer)
                with connection:
                    connection.sendall(b"private")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1]), came
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def addresses_of_this_host() -> list[str]:
    listed = json.loads(
        subprocess.run(["ip", "-json", "-4", "addr"], capture_output=True, check=True, timeout=100).stdout
    )
    return [each["local"] for link in listed for each in link["addr_info"]]


def attack(machine: Machine, targets: list[tuple[str, int]], way: str) -> set[tuple[str, int]]:
    """Return the targets that a machine can reach."""
    done = machine.execute(["python3", "-c", ATTACK, json.dumps(targets), way], timeout=60)
    assert done.ok, done.error
    return {(host, port) for host, port in json.loads(done.output)}


@pytest.mark.qemu
@pytest.mark.parametrize("network", ["none", "internet"])
def test_a_machine_cannot_reach_this_host_or_another_machine(network: str) -> None:
    guests_view = ("10.0.2.2", "10.0.2.3", "10.0.2.4", "10.0.3.2", "10.0.3.100", "127.0.0.1")
    hosts = [*dict.fromkeys([*guests_view, *addresses_of_this_host()])]
    with (
        service_of_this_host("0.0.0.0") as (port, came),  # all of its addresses are attacked
        VMPoolManager("qemu", 2, spares=0, name=f"attack-{network}", options={"network": network}) as pool,
        pool.lease(timeout=60) as attacker,
        pool.lease(timeout=60) as victim,
    ):
        ports = (port, victim.port)
        targets = [(host, port) for host in hosts for port in ports]
        connectable = [target for target in targets if target[0] != "127.0.0.1"]  # by a socket that is the guest itself
        assert attack(attacker, connectable, "connect") == set()
        assert attack(attacker, targets, "raw") == set()
        assert came == []
        assert victim.execute(["true"]).ok


@pytest.mark.qemu
def test_the_attack_succeeds_with_the_network_of_the_host() -> None:
    """Shows that the attack of the test above is effective."""
    with (
        service_of_this_host("127.0.0.1") as (port, came),
        VMPoolManager("qemu", 2, spares=0, name="attack-host", options={"network": "host"}) as pool,
        pool.lease(timeout=60) as attacker,
        pool.lease(timeout=60) as victim,
    ):
        targets = [("10.0.2.2", port), ("10.0.2.2", victim.port)]
        assert attack(attacker, targets, "connect") == set(targets)
        targets.append(("127.0.0.1", port))  # in a packet of its own making
        assert attack(attacker, targets, "raw") == set(targets)
        assert came
        steal = (
            "import json, sys, urllib.request as u; "
            "body = json.dumps({'token': 'x' * 40, 'time': None, 'entropy': ''}).encode(); "
            "own = open('/sys/firmware/qemu_fw_cfg/by_name/opt/paragent/secret/raw').read(); "
            "given = [{}, {'X-Paragent-Token': '1'}, {'X-Paragent-Token': own}]\n"
            "for path in ('paragent/adopt', 'execute', 'paragent/state', 'platform'):\n"
            "    for headers in given:\n"
            "        data = None if path in ('paragent/state', 'platform') else body\n"
            "        try: print(u.urlopen(u.Request(sys.argv[1] + path, data, headers), timeout=10).status)\n"
            "        except u.HTTPError as error: print(error.code)\n"
        )
        done = attacker.execute(["python3", "-c", steal, f"http://10.0.2.2:{victim.port}/"], timeout=60)
        assert done.ok, done.error
        assert len(done.output.split()) == 12
        assert set(done.output.split()) <= {"401", "403", "409"}
        assert victim.execute(["true"]).ok, "the victim still belongs to its holder"


@contextmanager
def other_host(subnet: str, letter: str) -> Iterator[str]:
    """Yield the address of another host, a network namespace, where port 80 is served."""
    near = f"pg{os.getpid() % 100000}{letter}"
    serve = "import socket; s = socket.create_server(('', 80)); print('serving', flush=True)\nwhile True: s.accept()"
    with network_namespace() as namespace:
        namespace.connect(near, f"{subnet}.2/30")
        ip("addr", "add", f"{subnet}.1/30", "dev", near)
        ip("link", "set", near, "up")
        command = [*namespace.prefix, sys.executable, "-c", serve]
        with BoundedPopen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == "serving\n"
                yield f"{subnet}.2"
            finally:
                server.kill()


@pytest.mark.qemu
def test_a_machine_with_the_internet_reaches_only_public_addresses() -> None:
    look = "import socket, sys; socket.create_connection((sys.argv[1], 80), 10).close(); print('connected')"
    with (
        other_host("45.67.89", "a") as public,
        other_host("10.213.58", "b") as private,
        VMPoolManager("qemu", 1, spares=0, name="internet", internet=True) as pool,
        pool.lease(timeout=60) as machine,
    ):
        reached = {}
        for address in (public, private):
            command = ["python3", "-c", look, address]
            here = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
            reached[address] = (here.strip(), machine.execute(command, timeout=60).output.strip())
    assert reached == {public: ("connected", "connected"), private: ("connected", "")}


@pytest.mark.qemu
def test_each_machine_has_its_own_secret_and_token() -> None:
    read = "cat /sys/firmware/qemu_fw_cfg/by_name/opt/paragent/secret/raw"
    seen: list[str | None] = []
    with VMPoolManager("qemu", 2, spares=0, name="secrets") as pool:
        for _ in range(2):
            with pool.lease(timeout=60) as first, pool.lease(timeout=60) as second:
                for machine in (first, second):
                    seen += [machine.execute(read).output, machine.token]
                taken = json_body({"token": "y" * 40, "time": None, "entropy": ""})
                for secret in (seen[-2], None):  # of the other machine, and none
                    reply = GuestRequest(first.host, first.port, "POST", "/paragent/adopt", taken, secret, 20).send()
                    assert reply.status in {401, 403}
                assert GuestRequest(first.host, first.port, "GET", "/platform", timeout=20).send().status == 401
                with pytest.raises(LeaseLost):
                    Machine("m0", first.host, first.port, second.token).platform()
    assert len(set(seen)) == len(seen) == 8
    assert all(text and len(text) >= 43 for text in seen)


def test_a_free_machine_serves_only_its_pool() -> None:
    with VMPoolManager("process", 1, spares=0, name="free") as pool:
        pool.wait_until_free(1, 60)
        host, _, port = pool.status().machines[0].address.rpartition(":")
        for method, path in (("GET", "/platform"), ("POST", "/execute"), ("POST", "/paragent/adopt")):
            body = None if method == "GET" else json_body({"command": ["true"], "token": "z" * 40})
            assert GuestRequest(host, int(port), method, path, body, timeout=20).send().status == 401
        with pool.lease(timeout=20) as machine:
            assert machine.execute(["true"]).ok


def test_an_unknown_network_is_rejected() -> None:
    with pytest.raises(ConfigError, match="none, internet, host"):
        VMPoolManager("qemu", 1, options={"network": "lan"}, name="wrong").start()


@pytest.mark.qemu
def test_the_display_needs_a_password() -> None:
    with (
        VMPoolManager("qemu", 1, spares=0, name="password", headless=False) as pool,
        pool.lease(timeout=60) as machine,
    ):
        host, port = machine.details["vnc"].rsplit(":", 1)
        assert len(machine.details["vnc_password"]) == 8
        with socket.create_connection((host, int(port)), 10) as display:
            display.settimeout(10)
            version = display.recv(12)
            display.sendall(version)
            assert display.recv(2) == b"\x01\x02", "one kind of login, by password"


@pytest.mark.qemu
def test_qemu_runs_with_a_system_call_filter() -> None:
    with (
        VMPoolManager("qemu", 1, spares=0, name="filtered") as pool,
        pool.lease(timeout=60) as machine,
    ):
        status = Path(f"/proc/{machine.details['pid']}/status").read_text()
        assert "Seccomp:\t2\n" in status
        assert status.startswith("Name:\tqemu-system")


def test_machines_do_not_inherit_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.setenv("PARAGENT_TOKEN", "token-of-the-user")
    with (
        VMPoolManager("process", 1, spares=0, name="keys") as pool,
        pool.lease(timeout=60) as machine,
    ):
        seen = machine.execute("env; cat /proc/$PPID/environ").output
    assert "PATH=" in seen
    assert "of-the-user" not in seen


@pytest.mark.qemu
def test_the_console_log_of_a_machine_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from paragent.machines.providers import qemu

    monkeypatch.setattr(qemu, "_LOG_BYTES", 50_000)
    with (
        VMPoolManager("qemu", 1, spares=0, name="console") as pool,
        pool.lease(timeout=60) as machine,
    ):
        console = cache_folder("owners", "console")
        files = list(console.glob("*/*/console.log"))
        assert len(files) == 1
        before = -1
        for _ in range(200):  # rounds until it was emptied once
            machine.execute("head -c 60000 /dev/zero | tr '\\0' x > /dev/ttyS0", timeout=60)
            size = files[0].stat().st_size
            if size < before:
                break
            before = size
        assert files[0].stat().st_size < before


def test_the_number_of_a_lease_is_not_accepted_as_token() -> None:
    with VMPoolManager("process", 1, spares=0, name="guess") as pool:
        lease = pool.allocate(timeout=20)
        machine = lease.machine
        for guess in (str(lease.token), str(lease.token + 1), "0", ""):
            with pytest.raises((LeaseLost, MachineFailed)):
                Machine("m0", machine.host, machine.port, guess).platform()


@pytest.mark.qemu
@pytest.mark.parametrize("network", ["none", "internet"])
def test_all_processes_of_a_machine_end_with_a_killed_pool(network: str) -> None:
    source = (
        "from paragent import VMPoolManager\n"
        f"pool = VMPoolManager('qemu', 1, spares=0, name='killed-{network}', options={{'network': '{network}'}}).start()\n"
        "print('started', flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        (run,) = (folder.name for folder in cache_folder("owners", f"killed-{network}").iterdir())
        machines = owned_processes([run])
        assert len(machines) == (2 if network == "internet" else 1)
        process.kill()
    wait_until(lambda: not any(map(alive, machines)))
