"""Which hosts an agent may connect to: rules, addresses as clients write them, and forbidden addresses."""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from shoal.errors import BadInput

HTTPS = 443
MOST_NAME = 253
MOST_SHOWN = 120
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
NAME = re.compile(rf"{LABEL}(?:\.{LABEL})*")
NUMBER = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
"""A name that ends like this is an IPv4 address to many programs: `127.1`, `0x7f.1`, `2130706433`."""
AUTHORITY = re.compile(rb"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
METADATA = frozenset(
    map(ipaddress.ip_address, ["168.63.129.16", "169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"])
)
EMBEDDING = tuple(map(ipaddress.ip_network, ["2002::/16", "2001::/32", "64:ff9b::/96", "64:ff9b:1::/48", "::/96"]))
"""IPv6 networks whose addresses stand for an IPv4 address."""


class BadHostRule(BadInput):
    """An entry of `hosts` that is not a host."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"hosts: {_printable(text)} {why}; write `pypi.org`, `pypi.org:443` or `*.github.com`")


class BadAuthority(Exception):
    """What a client wrote is not clearly one host and one port."""


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of `hosts`: a name, all names below one, or an address, with a port."""

    host: str
    port: int = HTTPS
    is_wildcard: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `pypi.org`, `pypi.org:8443`, `*.github.com`, `127.0.0.1:4873` or `[::1]:4873`."""
        host, port = _split_port(text)
        is_wildcard = host.startswith("*.")
        name = host.removeprefix("*.").lower()
        if not host.isascii():
            raise BadHostRule(text, "is not ASCII; write its `xn--` form")
        if "*" in name or (is_wildcard and name.count(".") < 1):
            raise BadHostRule(text, "is too wide: `*.` stands before a name with a dot")
        if (address := _read_address(name)) is not None:
            if is_wildcard or address in METADATA or address.is_link_local or address.is_unspecified:
                raise BadHostRule(text, "is an address that is never allowed")
            return cls(str(address), port)
        if problem := _name_problem(name):
            raise BadHostRule(text, problem)
        return cls(name, port, is_wildcard)

    @property
    def is_literal(self) -> bool:
        """Whether it allows exactly one address, without DNS; it may be one that no name may resolve to."""
        return not self.is_wildcard and (self.host == "localhost" or _read_address(self.host) is not None)

    @property
    def is_loopback(self) -> bool:
        """Whether it allows a port of this host that clients do not ask a proxy for."""
        return self.host in ("localhost", "127.0.0.1")

    def allows(self, host: str, port: int) -> bool:
        """Return whether it allows a host that `parse_authority` returned."""
        is_same = host.endswith(f".{self.host}") if self.is_wildcard else host == self.host
        return is_same and port == self.port

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else f"{'*.' * self.is_wildcard}{self.host}"
        return f"{host}:{self.port}"


def find_rule(rules: Iterable[HostRule], host: str, port: int) -> HostRule | None:
    """Return the rule that allows a host, or `None`."""
    return next((rule for rule in rules if rule.allows(host, port)), None)


def parse_authority(target: bytes) -> tuple[str, int]:
    """Read `host:port` of a CONNECT; raise `BadAuthority` if it is in any doubt."""
    found = AUTHORITY.fullmatch(target)
    if found is None:
        raise BadAuthority("is not `host:port`")
    host, port = found[1].decode().lower(), int(found[2])
    if port > 65535:
        raise BadAuthority("has a port that does not exist")
    if host.startswith("["):
        address = _read_address(host[1:-1])
        if address is None or address.version != 6:
            raise BadAuthority("is not an IPv6 address")
        return str(address), port
    if _read_address(host) is None and (problem := _name_problem(host)):
        raise BadAuthority(problem)
    return host, port


def refuse_address(address: Address, is_own: Callable[[Address], bool]) -> str | None:
    """Return why an address that a name resolved to is refused, or `None`."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or any(address in network for network in EMBEDDING):
            return "an IPv6 address that stands for an IPv4 one"
        if address.scope_id or address.is_site_local:
            return "an address of one link or site"
    if address in METADATA:
        return "a cloud's metadata service"
    for kind in ("loopback", "link_local", "multicast", "unspecified"):
        if getattr(address, f"is_{kind}"):
            return f"a {kind.replace('_', '-')} address" if kind != "unspecified" else "no address"
    if address.is_private or not address.is_global:
        return "a private or reserved address"
    return "an address of this host" if is_own(address) else None


def is_own_address(address: Address) -> bool:
    """Return whether an address is one of this host's: the kernel would then send from it to itself."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # UDP: nothing is sent
        except OSError:
            return False
        return bool(probe.getsockname()[0] == str(address))


def _split_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        colon, port = port[:1], port[1:]
    elif not colon:
        host, port = text, ""
    if colon and (not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535):
        raise BadHostRule(text, "has a port that does not exist")
    return host, int(port) if colon else HTTPS


def _read_address(host: str) -> Address | None:
    """Read an address in the only spelling that all programs read alike."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return address if str(address) == host.lower() and "%" not in host else None


def _name_problem(name: str) -> str | None:
    if len(name) > MOST_NAME or not NAME.fullmatch(name):
        return "is not a host name"
    return "is an address in an unusual spelling" if NUMBER.fullmatch(name) else None


def _printable(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"
