"""Which addresses pass, and what an operator can add to them."""

import pytest

from app.domain.outbound import OutboundPolicy

PUBLIC = ("93.184.216.34", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1", "::ffff:8.8.8.8")
INNER = (
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "fd00:ec2::254",
    "fc00::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "not an address",
    "",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert OutboundPolicy().allows("host.example", [address])


@pytest.mark.parametrize("address", INNER)
def test_inner_addresses_do_not(address: str) -> None:
    assert not OutboundPolicy().allows("host.example", [address])


def test_one_inner_address_among_public_ones_is_enough_to_refuse() -> None:
    assert not OutboundPolicy().allows("host.example", ["8.8.8.8", "10.0.0.1"])


def test_a_host_without_addresses_is_refused() -> None:
    assert not OutboundPolicy("host.example").allows("host.example", [])


def test_an_allowed_network_passes_in_every_form_that_carries_it() -> None:
    policy = OutboundPolicy(" 127.0.0.0/8, fd00::/16 ")
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00::1"):
        assert policy.allows("host.example", [address])
    for address in ("10.0.0.1", "::1", "fd01::1"):
        assert not policy.allows("host.example", [address])


def test_an_allowed_name_is_exact() -> None:
    policy = OutboundPolicy("tools.internal, localhost")
    assert policy.allows("Tools.Internal", ["10.0.0.1"])
    assert policy.allows("tools.internal.", ["10.0.0.1"])
    assert not policy.allows("a.tools.internal", ["10.0.0.1"])
    assert not policy.allows("tools.internal.evil.example", ["10.0.0.1"])


@pytest.mark.parametrize("allow", ["10.0.0.0/33", "10.0.0", "*.internal", "http://tools.internal", "a b", "300.1.1.1"])
def test_an_entry_that_means_nothing_is_refused(allow: str) -> None:
    with pytest.raises(ValueError, match="neither a network"):
        OutboundPolicy(f"127.0.0.0/8,{allow}")
