"""Networks of IPv4 that do not belong to the public Internet: one table for guests, browsers and downloads.

It is a table of our own, as those of Python's `ipaddress` differ from version to version and do not know the addresses of clouds.
Source: IANA's registries of special-purpose addresses.
"""

from __future__ import annotations

__all__ = ["NOT_PUBLIC_4"]

NOT_PUBLIC_4 = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",  # carriers; the metadata service of Alibaba
    "127.0.0.0/8",
    "168.63.129.16/32",  # the host of a machine on Azure
    "169.254.0.0/16",  # links; the metadata services of most clouds
    "172.16.0.0/12",
    "192.0.0.0/24",  # protocols; the metadata service of Oracle
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""This host, private networks, the services of clouds for their machines, multicast and what is reserved."""
