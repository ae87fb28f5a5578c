"""What every client is told: where the cluster is, who asks, and whom to trust.

ClientArguments is what users write as keywords; ClientOptions is the same, checked and complete. Wrong arguments
raise TypeError or ValueError that name the argument, before anything is sent.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict

from rmq_core.clock import Clock, SystemClock
from rmq_core.errors import RocketMQError
from rmq_core.net.connection import parse_address
from rmq_core.net.tls import TlsFiles, client_context

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
NAME_SERVER_DEFAULT: Final = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Signs every request."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access_key and a secret_key")


class ClientArguments(TypedDict, total=False):
    """Keyword arguments that every client takes."""

    name_server: str | Sequence[str] | None
    """"host:port;host:port" or a list; absent: NAMESRV_ADDR, then 127.0.0.1:9876."""
    address_server: str | None
    """An HTTP URL that gives the name servers; asked again every two minutes."""
    namespace: str
    instance_name: str | None
    """Clients of one process with the same name share connections and one client id."""
    unit_name: str
    credentials: Credentials | None
    tls: bool | ssl.SSLContext
    """True trusts the certificates that this machine trusts; give a context for anything else."""
    vip_channel: bool
    """Send and administrate over the broker's second port."""
    broker_address_map: Mapping[str, str]
    """Addresses to use in place of those that brokers announce (Docker, VPN)."""
    hooks: Sequence[object]
    """Objects with any of the methods of `rmq_core.client.hooks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often a client does what it does by itself, in milliseconds."""

    route_refresh_ms: int = 30_000
    heartbeat_ms: int = 30_000
    persist_ms: int = 5_000
    rebalance_ms: int = 20_000
    lock_renewal_ms: int = 20_000
    address_refresh_ms: int = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The arguments of a client, checked."""

    name_servers: tuple[str, ...]
    address_server: str | None = None
    namespace: str = ""
    instance_name: str | None = None
    unit_name: str = ""
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None
    vip_channel: bool = False
    broker_address_map: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[object, ...] = ()
    call_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000
    intervals: Intervals = Intervals()
    clock: Clock = field(default_factory=SystemClock, compare=False)

    def reachable(self, address: str) -> str:
        """The address to connect to for one that a broker announced."""
        return self.broker_address_map.get(address, address)


def client_options(arguments: ClientArguments, *, clock: Clock | None = None) -> ClientOptions:
    """Check what the user wrote and fill in the rest. Raises TypeError and ValueError naming the argument."""
    unknown = sorted(set(arguments) - set(ClientArguments.__annotations__))
    if unknown:
        raise TypeError(
            f"unknown argument {unknown[0]!r}; clients take {', '.join(ClientArguments.__annotations__)}"
        )
    address_server = arguments.get("address_server")
    if address_server is not None and not address_server.startswith(("http://", "https://")):
        raise ValueError(f"address_server must be an HTTP URL, not {address_server!r}")
    given = arguments.get("name_server")
    instance_name = arguments.get("instance_name")
    if instance_name is not None and not instance_name:
        raise ValueError("instance_name is empty; leave it out to have one made")
    address_map = dict(arguments.get("broker_address_map") or {})
    for announced, used in address_map.items():
        _check_address("broker_address_map", announced)
        _check_address("broker_address_map", used)
    return ClientOptions(
        name_servers=() if address_server is not None and given is None else parse_name_servers(given),
        address_server=address_server,
        namespace=_text("namespace", arguments.get("namespace", "")),
        instance_name=instance_name,
        unit_name=_text("unit_name", arguments.get("unit_name", "")),
        credentials=_checked_credentials(arguments.get("credentials")),
        tls=_tls_context(arguments.get("tls", False)),
        vip_channel=bool(arguments.get("vip_channel", False)),
        broker_address_map=address_map,
        hooks=tuple(arguments.get("hooks") or ()),
        clock=clock or SystemClock(),
    )


def parse_name_servers(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses, each host:port. None means the environment's, or this machine's. Raises ValueError."""
    if given is None:
        given = os.environ.get(NAME_SERVER_VARIABLE) or NAME_SERVER_DEFAULT
    if isinstance(given, str):
        given = given.split(";")
    elif not isinstance(given, Sequence):
        raise TypeError(f"name_server must be 'host:port;host:port' or a list, not {type(given).__name__}")
    addresses = tuple(dict.fromkeys(each.strip() for each in given if each.strip()))
    if not addresses:
        raise ValueError("name_server names no address; give it as 'host:port;host:port'")
    for address in addresses:
        _check_address("name_server", address)
    return addresses


def _check_address(what: str, address: str) -> None:
    try:
        parse_address(address)
    except RocketMQError as error:
        raise ValueError(f"{what}: {error}") from None


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be str, not {type(value).__name__}")
    return value


def _checked_credentials(value: object) -> Credentials | None:
    if value is not None and not isinstance(value, Credentials):
        raise TypeError(f"credentials must be Credentials, not {type(value).__name__}")
    return value


def _tls_context(value: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    if isinstance(value, ssl.SSLContext):
        return value
    if not isinstance(value, bool):
        raise TypeError(f"tls must be True, False or an ssl.SSLContext, not {type(value).__name__}")
    return client_context(TlsFiles(), verify_server=True) if value else None
