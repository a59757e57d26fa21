"""Rules of hosts, the ways to write one, and the addresses that no name may mean."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.gateway.hosts import BadAuthority, HostRule, find_rule, is_own_address, parse_authority, refuse_address

RULES = [HostRule.parse(text) for text in ("ok.com", "*.github.com:443", "pypi.org:8443", "127.0.0.1:4873", "[::1]:80")]


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (b"ok.com:443", "ok.com:443"),
        (b"OK.com:443", "ok.com:443"),
        (b"api.github.com:443", "*.github.com:443"),
        (b"a.b.github.com:443", "*.github.com:443"),
        (b"pypi.org:8443", "pypi.org:8443"),
        (b"127.0.0.1:4873", "127.0.0.1:4873"),
        (b"[::1]:80", "[::1]:80"),
    ],
)
def test_a_rule_allows_what_it_names(target: bytes, rule: str) -> None:
    assert str(find_rule(RULES, *parse_authority(target))) == rule


@pytest.mark.parametrize(
    "target",
    [
        *(b"ok.com.evil:443", b"evil-ok.com:443", b"evilok.com:443", b"www.ok.com:443", b"ok.com:80", b"ok.co:443"),
        *(b"github.com:443", b"github.com.evil.test:443", b"evilgithub.com:443", b"pypi.org:443", b"127.0.0.1:80"),
        *(b"127.0.0.2:4873", b"localhost:4873", b"[::1]:4873"),
    ],
)
def test_a_neighbour_of_a_rule_is_denied(target: bytes) -> None:
    assert find_rule(RULES, *parse_authority(target)) is None


TRICKS = [
    *(
        b"",
        b"ok.com",
        b":443",
        b"ok.com:",
        b"ok.com:0",
        b"ok.com:00443",
        b"ok.com:65536",
        b"ok.com:99999",
        b"ok.com:+443",
    ),
    *(
        b"evil\0.ok.com:443",
        b"ok.com\0.evil:443",
        b"ok.com@evil.com:443",
        b"user:pw@ok.com:443",
        b"ok.com:443@evil.com:443",
    ),
    *(b"ok.com.:443", b".ok.com:443", b"ok..com:443", b"-ok.com:443", b"ok-.com:443", b"ok_x.com:443"),
    *(
        b"ok.com:443 ",
        b" ok.com:443",
        b"ok.com:443\r\n",
        b"ok.com:443\n",
        b"ok.com :443",
        b"ok.com:4 43",
        b"ok.com\t:443",
    ),
    *("ök.com:443".encode(), "ｏk.com:443".encode(), "ok。com:443".encode(), "ok.com:４４３".encode(), b"\xff:443"),
    *(
        b"http://ok.com:443",
        b"ok.com:443/",
        b"ok.com:443?x",
        b"ok.com:443#x",
        b"//ok.com:443",
        b"ok.com\\:443",
        b"ok%2ecom:443",
    ),
    *(
        b"2130706433:443",
        b"017700000001:443",
        b"0x7f000001:443",
        b"0x7f.1:443",
        b"127.1:443",
        b"127.0.1:443",
        b"0177.0.0.1:443",
    ),
    *(b"127.0.0.01:443", b"1.2.3.4.:443", b"1.2.3.256:443", b"1.2.3.4.5:443", b"0x7f.0.0.0x1:443", b"ok.com.0x7f:443"),
    *(
        b"::1:443",
        b"[::1:443",
        b"::1]:443",
        b"[::1]",
        b"[127.0.0.1]:443",
        b"[::ffff:127.0.0.1]x:443",
        b"[fe80::1%eth0]:443",
    ),
    *(
        b"[0:0:0:0:0:0:0:1]:443",
        b"[::0001]:443",
        b"*.github.com:443",
        b"*:443",
        b"ok.com:443:443",
        b"a" * 300 + b".com:443",
    ),
]


@pytest.mark.parametrize("target", TRICKS, ids=repr)
def test_whatever_could_mean_two_hosts_is_no_authority(target: bytes) -> None:
    with pytest.raises(BadAuthority):
        parse_authority(target)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_authority_or_none(target: bytes) -> None:
    try:
        host, port = parse_authority(target)
    except BadAuthority:
        return
    assert target.decode().lower() in (f"{host}:{port}", f"[{host}]:{port}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*", "too wide"),
        ("*.com", "too wide"),
        ("*.*.com", "too wide"),
        ("a.*.com", "too wide"),
        ("*.127.0.0.1", "never allowed"),
        ("169.254.169.254:80", "never allowed"),
        ("0.0.0.0:80", "never allowed"),
        ("[fe80::1]:80", "never allowed"),
        ("https://pypi.org", "port"),
        ("pypi.org/simple", "not a host name"),
        ("pypi.org:https", "port"),
        ("pypi.org:0", "port"),
        ("pypi.org:70000", "port"),
        ("pypi.org.", "not a host name"),
        ("", "not a host name"),
        ("münchen.de", "xn--"),
        ("127.1", "unusual spelling"),
        ("2130706433", "unusual spelling"),
        ("0x7f000001", "unusual spelling"),
    ],
)
def test_a_bad_rule_is_a_mistake_that_is_explained(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        HostRule.parse(text)


def test_a_rule_is_written_as_it_is_read() -> None:
    for text in ("pypi.org:443", "*.github.com:8443", "127.0.0.1:4873", "[::1]:443", "localhost:80"):
        assert str(HostRule.parse(text)) == text
    assert [HostRule.parse(text).is_literal for text in ("127.0.0.1:1", "localhost:1", "ok.com", "*.ok.com")] == [
        *(True, True, False, False)
    ]


REFUSED = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.0.1"),
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *(
        "198.18.0.1",
        "192.0.2.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "fe80::1",
        "fc00::1",
    ),
    *(
        "fd00:ec2::254",
        "ff02::1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "2001::1",
        "2001:db8::1",
        "fe80::1%eth0",
        "fec0::1",
    ),
]


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_that_no_name_may_mean_is_refused(text: str) -> None:
    assert refuse_address(ipaddress.ip_address(text), lambda _: False)


@pytest.mark.parametrize("text", ["8.8.8.8", "151.101.0.223", "2a04:4e42::223"])
def test_a_public_address_is_dialled_unless_it_is_our_own(text: str) -> None:
    address = ipaddress.ip_address(text)

    assert refuse_address(address, lambda _: False) is None
    assert refuse_address(address, lambda _: True) == "an address of this host"


def test_this_hosts_addresses_are_known() -> None:
    assert is_own_address(ipaddress.ip_address("127.0.0.1"))
    assert not is_own_address(ipaddress.ip_address("192.0.2.1"))
