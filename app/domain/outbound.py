"""Which addresses the gateway calls for tenants and models: public ones, and what the operator allows beside them. Pure."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
_Network: TypeAlias = IPv4Network | IPv6Network

_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final[tuple[_Network, ...]] = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carriers' own; metadata of some clouds
        "168.63.129.16/32",  # Azure's services for its machines, on a public number
        "169.254.0.0/16",  # link-local: metadata of most clouds
        "192.0.0.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "240.0.0.0/4",
        "::/96",  # IPv4 in the form before the mapped one
        "64:ff9b:1::/48",  # NAT64 of a site
        "100::/64",
        "2001::/23",  # Teredo and other protocols' own
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",  # metadata of AWS: fd00:ec2::254
        "fe80::/10",
        "fec0::/10",
    )
)
"""Beside what Python's ``ipaddress`` calls not global: its tables differ from version to version."""

_HOST_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


class OutboundPolicy:
    """Judges addresses. ``allow`` holds networks (``10.0.0.0/8``, ``::1``) and host names that may be called although they are not public.

    An allowed name is exact and stands for whatever it resolves to.
    """

    def __init__(self, allow: str = "") -> None:
        """``allow`` is comma-separated. Raises ValueError for an entry that is neither a network nor a host name."""
        networks: list[_Network] = []
        names: set[str] = set()
        for entry in _entries(allow):
            try:
                networks.append(ip_network(entry, strict=False))
            except ValueError:
                if _HOST_NAME.fullmatch(entry) is None or entry.replace(".", "").isdigit():
                    raise ValueError(f"{entry[:64]!r} is neither a network such as 10.0.0.0/8 nor a host name") from None
                names.add(entry)
        self._networks = tuple(networks)
        self._names = frozenset(names)

    def allows(self, host: str, addresses: Iterable[str]) -> bool:
        """Whether ``host`` may be called where it resolves to ``addresses``: all of them have to pass, and there has to be one."""
        found = tuple(addresses)
        if not found:
            return False
        if host.lower().rstrip(".") in self._names:
            return True
        return all(self._passes(_parsed(each)) for each in found)

    def _passes(self, address: Address | None) -> bool:
        if address is None:
            return False
        if any(address in network for network in self._networks):
            return True
        carried = _carried(address)
        return self._passes(carried) if carried is not None else _is_public(address)


def _entries(allow: str) -> Iterable[str]:
    return (entry for part in allow.split(",") if (entry := part.strip().lower().rstrip(".")))


def _parsed(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _carried(address: Address) -> IPv4Address | None:
    """The IPv4 address that a packet to ``address`` ends at, for forms of IPv6 that only carry one."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_public(address: Address) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback or address.is_link_local
    return address.is_global and not special and not any(address in network for network in _NOT_PUBLIC)
