"""Classification of public addresses, in every notation that embeds one address in another."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent._internal.networks import is_public
from paragent.machines.providers.qemu.network import blocked_networks

PRIVATE = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
]


def within(network: str) -> st.SearchStrategy[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    parsed = ipaddress.ip_network(network)
    first, last = int(parsed.network_address), int(parsed.broadcast_address)
    return st.integers(first, last).map(ipaddress.IPv4Address if parsed.version == 4 else ipaddress.IPv6Address)


def embedded(inner: int, outer: int) -> list[str]:
    """Return the IPv6 addresses that embed an IPv4 address; `outer` fills the unused bits."""
    low = outer & (1 << 80) - 1
    return [
        str(ipaddress.IPv6Address(0xFFFF << 32 | inner)),
        str(ipaddress.IPv6Address(0x64FF9B << 96 | inner)),
        str(ipaddress.IPv6Address(0x2002 << 112 | inner << 80 | low)),
        str(ipaddress.IPv6Address(0x20010000 << 96 | (outer & 0xFFFFFFFF) << 64 | inner ^ 0xFFFFFFFF)),
        str(ipaddress.IPv6Address(0x20010000 << 96 | inner << 64 | outer & 0xFFFFFFFF)),
        str(ipaddress.IPv6Address(inner)),
        str(ipaddress.IPv6Address(0x0064FF9B0001 << 80 | inner)),
    ]


@given(st.sampled_from(PRIVATE).flatmap(within), st.integers(0, 2**96 - 1))
def test_private_addresses_are_private_in_every_notation(address: ipaddress.IPv4Address, outer: int) -> None:
    assert not is_public(str(address))
    for notation in embedded(int(address), outer):
        assert not is_public(notation), notation


@given(
    st.sampled_from(
        ["::/16", "64:ff9b:1::/48", "100::/64", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"]
    ).flatmap(within)
)
def test_only_global_unicast_is_public(address: ipaddress.IPv6Address) -> None:
    assert not is_public(str(address)) or address.ipv4_mapped is not None


@given(st.ip_addresses())
def test_public_addresses_are_global_for_ipaddress(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if is_public(str(address)) and (address.version == 4 or address in ipaddress.ip_network("2000::/3")):
        assert address.is_global


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("1.1.1.1", True),
        ("168.63.129.15", True),
        ("192.0.1.1", True),
        ("2606:4700::1111", True),
        ("2a00:1450:4001::1", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("192.0.0.192", False),
        ("168.63.129.16", False),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("255.255.255.255", False),
        ("fec0::1", False),
        ("64:ff9b:1::808:808", False),
        ("fd00:ec2::254", False),
        ("fe80::1%eth0", False),
        ("::1", False),
        ("::", False),
        ("2002:808:808::1", False),
    ],
)
def test_known_addresses_are_classified(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_names_are_not_addresses() -> None:
    with pytest.raises(ValueError, match="localhost"):
        is_public("localhost")


@given(st.sampled_from([network for network in PRIVATE if network != "127.0.0.0/8"]).flatmap(within))
def test_machines_reach_only_public_addresses(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """The network rules of machines and the downloads of this host allow the same addresses."""
    closed = [ipaddress.ip_network(network) for network in blocked_networks()]
    assert not is_public(str(address))
    assert any(address in network for network in closed)
