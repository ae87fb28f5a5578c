"""Addresses as records hold them."""

from __future__ import annotations

import functools
import ipaddress
import socket

from rmq_core.errors import ConfigError
from rmq_core.net.connection import parse_address


@functools.lru_cache(maxsize=16_384)
def packed_host(address: str) -> bytes:
    """4 or 16 address bytes and the port in 4, of "ip:port" or "[ipv6]:port"."""
    host, port = parse_address(address)
    ip = ipaddress.ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).packed + port.to_bytes(4, "big")


def host_text(packed: bytes) -> str:
    """ip:port of a packed host."""
    ip = ipaddress.ip_address(packed[:-4])
    port = int.from_bytes(packed[-4:], "big")
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def own_address() -> str:
    """The address of this machine that other machines reach; loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: connecting only asks which interface would be used.
            probe.connect(("192.0.2.1", 9))
            found = str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
    return found if found != "0.0.0.0" else "127.0.0.1"


def from_here(bind_address: str) -> str:
    """How programs on this machine reach what listens on an address."""
    return "127.0.0.1" if bind_address in ("", "0.0.0.0", "::") else bind_address


def joined(host: str, port: int) -> str:
    """host:port as it is written in settings."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolved(host: str, setting: str) -> str:
    """The address of a host name, for records hold addresses only. Raises ConfigError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        try:
            return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[return-value]
        except OSError as error:
            raise ConfigError(setting, host, f"is no address and cannot be resolved: {error}") from None
