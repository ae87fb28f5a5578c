"""What every client is told: where the cluster is, who asks, and whom to trust.

ClientArguments is what users write as keywords; ClientOptions is the same, checked and complete. Wrong arguments
raise TypeError or ValueError that name the argument, before anything is sent.
"""

from __future__ import annotations

import inspect
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict, TypeVar, cast

from rmq_core.client.arguments import refuse_unknown, text, yes_or_no
from rmq_core.clock import Clock, SystemClock
from rmq_core.errors import RocketMQError
from rmq_core.net.connection import parse_address
from rmq_core.net.tls import TlsFiles, client_context

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
NAME_SERVER_DEFAULT: Final = "127.0.0.1:9876"

F = TypeVar("F", bound=Callable[..., Any])
Own = TypeVar("Own", bound=Any)


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
    """name_server         "host:port;host:port" or a list; absent: NAMESRV_ADDR, then 127.0.0.1:9876
    address_server      an HTTP URL that gives the name servers; asked again every two minutes
    namespace           stands before every topic and group on the brokers, and nowhere else
    instance_name       clients of one process with the same name share connections and one client id
    unit_name           stands in the client id, and asks the address server for the list of that unit
    credentials         sign every request
    tls                 True trusts the certificates that this machine trusts; give a context for anything else
    vip_channel         send and administrate over the broker's second port
    broker_address_map  addresses to use in place of those that brokers announce (Docker, VPN)
    hooks               objects with any of the methods of `rmq_core.client.hooks`
    """

    name_server: str | Sequence[str] | None
    address_server: str | None
    namespace: str
    instance_name: str | None
    unit_name: str
    credentials: Credentials | None
    tls: bool | ssl.SSLContext
    vip_channel: bool
    broker_address_map: Mapping[str, str] | None
    hooks: Sequence[object]


CLIENT_DEFAULTS: Final = ClientArguments(
    name_server=None,
    address_server=None,
    namespace="",
    instance_name=None,
    unit_name="",
    credentials=None,
    tls=False,
    vip_channel=False,
    broker_address_map=None,
    hooks=(),
)


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
    refuse_unknown(arguments, CLIENT_DEFAULTS)
    given = CLIENT_DEFAULTS | arguments
    address_server, name_server, instance_name = (
        given["address_server"],
        given["name_server"],
        given["instance_name"],
    )
    if address_server is not None and not text("address_server", address_server).startswith(
        ("http://", "https://")
    ):
        raise ValueError(f"address_server must be an HTTP URL, not {address_server!r}")
    if instance_name is not None and not text("instance_name", instance_name):
        raise ValueError("instance_name is empty; leave it out to have one made")
    return ClientOptions(
        name_servers=() if address_server is not None and name_server is None else parse_name_servers(name_server),
        address_server=address_server,
        namespace=text("namespace", given["namespace"]),
        instance_name=instance_name,
        unit_name=text("unit_name", given["unit_name"]),
        credentials=_checked_credentials(given["credentials"]),
        tls=_tls_context(given["tls"]),
        vip_channel=yes_or_no("vip_channel", given["vip_channel"]),
        broker_address_map=_checked_addresses(given["broker_address_map"]),
        hooks=_checked_hooks(given["hooks"]),
        clock=clock or SystemClock(),
    )


def own_options(kind: type[Own], arguments: ClientArguments) -> tuple[Own, ClientOptions]:
    """Check what the user wrote for one kind of client: its own arguments, and those that every client takes."""
    names = {each.name for each in fields(kind)}
    refuse_unknown(arguments, names | CLIENT_DEFAULTS.keys())
    own = {name: value for name, value in arguments.items() if name in names}
    rest = {name: value for name, value in arguments.items() if name not in names}
    return kind(**own), client_options(cast(ClientArguments, rest))


def shows(arguments: type, options: type | None = None) -> Callable[[F], F]:
    """Have help() show every name behind the `**arguments` of an __init__, with its default and meaning."""
    defaults = dict(CLIENT_DEFAULTS)
    if options is not None:
        defaults.update((each.name, each.default) for each in fields(options))
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=getattr(kind, "__forward_arg__", kind),
        )
        for name, kind in arguments.__annotations__.items()
    ]
    declarations = (*(options.__mro__[:-1] if options is not None else ()), ClientArguments)

    def decorate(init: F) -> F:
        own = [each for each in inspect.signature(init).parameters.values() if each.kind is not each.VAR_KEYWORD]
        init.__dict__["__signature__"] = inspect.Signature([*own, *keywords], return_annotation="None")
        init.__doc__ = "\n".join(inspect.cleandoc(each.__doc__) for each in (init, *declarations) if each.__doc__)
        return init

    return decorate


def parse_name_servers(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses, each host:port. None means the environment's, or this machine's. Raises ValueError."""
    if given is None:
        given = os.environ.get(NAME_SERVER_VARIABLE) or NAME_SERVER_DEFAULT
    if isinstance(given, str):
        given = given.split(";")
    elif not isinstance(given, Sequence):
        raise TypeError(f"name_server must be 'host:port;host:port' or a list, not {type(given).__name__}")
    addresses = tuple(dict.fromkeys(each for each in (text("name_server", part).strip() for part in given) if each))
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


def _checked_addresses(given: Mapping[str, str] | None) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"broker_address_map must be a dict, not {type(given).__name__}")
    addresses = dict(given or {})
    for each in (*addresses, *addresses.values()):
        _check_address("broker_address_map", text("broker_address_map", each))
    return addresses


def _checked_hooks(given: Sequence[object]) -> tuple[object, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"hooks must be a list of objects, not {type(given).__name__}")
    return tuple(given)


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
