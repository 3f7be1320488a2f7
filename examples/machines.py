"""Six workers share two machines, which are reset between uses. Uses processes of this host; pass `qemu` for virtual machines."""

import sys
from concurrent.futures import ThreadPoolExecutor

from paragent import VMPoolManager


def work(number: int) -> str:
    with pool.lease(timeout=60, holder=f"worker {number}") as machine:
        before = machine.execute("ls").output.split()
        machine.put_file("notes.txt", f"worker {number} was here".encode())
        return f"worker {number} on {machine.id}, which had {before or 'nothing'}: {machine.get_file('notes.txt').decode()}"


with VMPoolManager(sys.argv[1] if len(sys.argv) > 1 else "process", 2) as pool:
    with ThreadPoolExecutor(6) as workers:
        for line in workers.map(work, range(6)):
            print(line)
    status = pool.status()
    print(f"{status.leases_granted} leases, {status.size} machines and {status.spares} spare")
