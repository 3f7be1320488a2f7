"""Network addresses: the hosts that may be contacted on behalf of a web page, a model or a task file; this host's own address."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "NOT_PUBLIC_4",
    "PrivateAddress",
    "check_public",
    "connect_public",
    "is_public",
    "local_address_towards",
    "names_loopback",
    "resolve",
]

NOT_PUBLIC_4 = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",  # carrier-grade NAT; the metadata service of Alibaba
    "127.0.0.0/8",
    "168.63.129.16/32",  # the host of a machine on Azure
    "169.254.0.0/16",  # link-local; the metadata services of most clouds
    "172.16.0.0/12",
    "192.0.0.0/24",  # protocol assignments; the metadata service of Oracle
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""IPv4 networks that are not public: this host, private networks, cloud services, multicast and reserved addresses."""

_DENIED_4 = tuple(map(ipaddress.IPv4Network, NOT_PUBLIC_4))
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""The only range of public IPv6 addresses."""
_DENIED_6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, among them Teredo with its embedded IPv4 addresses
        "2001:db8::/32",
        "2002::/16",  # 6to4: embeds an IPv4 address; obsolete
        "3fff::/20",
    )
)
_EMBEDDING = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv4-mapped addresses and NAT64: the last four bytes are the IPv4 address of the host."""
_EXTERNAL_ADDRESS = ("192.0.2.1", 9)
"""An address that is reserved for documentation; the route to it is the default route."""


class PrivateAddress(OSError):
    """A host has an address that is not public; the message names both."""


def is_public(address: str) -> bool:
    """Return whether a numeric address is public, that is, not of this host, a private network or a cloud service.

    Raises:
        ValueError: it is not an address.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if not any(parsed in network for network in _EMBEDDING):
            return parsed in _GLOBAL_6 and not any(parsed in network for network in _DENIED_6)
        parsed = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    return not any(parsed in network for network in _DENIED_4)


def check_public(host: str, addresses: Iterable[str]) -> None:
    """Check that all addresses of a host are public.

    Raises:
        PrivateAddress: one of them is not public.
    """
    for address in addresses:
        if not is_public(address):
            raise PrivateAddress(f"{host!r} is at {address}, which is not a public address")


def resolve(host: str, port: int) -> list[str]:
    """Return the numeric addresses of a host.

    Raises:
        OSError: the host has no address, or the name is not valid.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is not the name of a host") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def connect_public(address: tuple[str, int], *more: Any) -> socket.socket:
    """Connect as `socket.create_connection` does, to a host all of whose addresses are public.

    It connects to the same addresses that it checked, so changing the DNS entry between check and connection has no effect.

    Raises:
        PrivateAddress: one of the addresses is not public.
        OSError: the host has no address, or no address accepts the connection.
    """
    host, port = address
    addresses = resolve(host, port)
    check_public(host, addresses)
    failure: OSError = OSError(f"{host!r} has no address")
    for one in addresses:
        try:
            return socket.create_connection((one, port), *more)
        except OSError as error:
            failure = error
    raise failure


def local_address_towards(target: tuple[str, int] = _EXTERNAL_ADDRESS) -> str:
    """Return the address of this host from which `target` is reached; by default, from which the Internet is reached."""
    family, kind, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # on a datagram socket this sends nothing
        return str(probe.getsockname()[0])


def names_loopback(host: str) -> bool:
    """Whether the `Host` header of a request names this host.

    Web pages of a name that resolves to 127.0.0.1 send that name. Servers on loopback reject it, so that browsers do not show
    such pages what they serve.
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower() in {"127.0.0.1", "localhost", "[::1]"}
