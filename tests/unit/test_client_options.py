"""What clients are told is checked before anything is sent."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.hooks import CallHook, Hooks
from rmq_core.client.identity import make_client_id, new_unique_key
from rmq_core.client.options import Credentials, client_options, parse_name_servers
from rmq_core.protocol.acl import signature
from rmq_core.protocol.command import Command
from rmq_core.protocol.message_id import decode_unique_key


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"name_servers": "a:1"}, TypeError, "name_servers"),
        ({"name_server": "a"}, ValueError, "name_server"),
        ({"name_server": " ; "}, ValueError, "name_server"),
        ({"name_server": 9876}, TypeError, "name_server"),
        ({"address_server": "ftp://x"}, ValueError, "address_server"),
        ({"instance_name": ""}, ValueError, "instance_name"),
        ({"namespace": 3}, TypeError, "namespace"),
        ({"unit_name": None}, TypeError, "unit_name"),
        ({"credentials": ("a", "b")}, TypeError, "credentials"),
        ({"tls": "yes"}, TypeError, "tls"),
        ({"broker_address_map": {"10.0.0.1:10911": "nowhere"}}, ValueError, "broker_address_map"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    """Gives each argument a value that cannot be used."""
    with pytest.raises(error, match=says):
        client_options(arguments)  # type: ignore[arg-type]


def test_credentials_need_both_keys_and_never_show_the_secret() -> None:
    """Prints them, and leaves one out."""
    assert "hidden" not in repr(Credentials("key", "hidden", "hidden-too"))
    with pytest.raises(ValueError, match="secret_key"):
        Credentials("key", "")


def test_name_servers_come_from_the_argument_then_the_environment_then_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Takes one after the other away."""
    monkeypatch.setenv("NAMESRV_ADDR", "env:9876; env:9877 ;env:9876")
    assert parse_name_servers(["a:1", "b:2"]) == ("a:1", "b:2")
    assert parse_name_servers(None) == ("env:9876", "env:9877")
    monkeypatch.delenv("NAMESRV_ADDR")
    assert parse_name_servers(None) == ("127.0.0.1:9876",)


def test_tls_true_verifies_the_server_and_a_context_is_taken_as_it_is() -> None:
    """Looks at the context that comes out."""
    made = client_options({"tls": True}).tls
    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    own = ssl.create_default_context()
    assert client_options({"tls": own}).tls is own
    assert client_options({}).tls is None


def test_equal_arguments_give_equal_options() -> None:
    """Clients that share an instance name must agree on everything else."""
    arguments: Any = {"name_server": "a:1", "credentials": Credentials("k", "s"), "namespace": "n"}
    assert client_options(arguments) == client_options(arguments)
    assert client_options(arguments) != client_options(arguments | {"namespace": "m"})


def test_client_ids_differ_unless_an_instance_is_named() -> None:
    """Makes several, with and without a name."""
    assert make_client_id(None) != make_client_id(None)
    assert make_client_id("blue") == make_client_id("blue")
    assert make_client_id("blue", "unit").endswith("@blue@unit")


@given(st.integers(1, 300))
def test_unique_keys_are_unique_and_tell_their_time(count: int) -> None:
    """Makes many within one millisecond."""
    now_ms = 1_763_000_000_000
    keys = {new_unique_key(now_ms) for _ in range(count)}
    assert len(keys) == count
    decoded = decode_unique_key(keys.pop(), near_ms=now_ms + 1, utc_offset_ms=0)
    assert decoded is not None


def test_a_security_token_goes_with_every_request_and_is_signed() -> None:
    """Signs a request twice, as when it is tried again, and once without the token."""
    request = Command(code=10, ext={"topic": "Orders"}, body=b"x")
    CallHook(Hooks(()), Credentials("key", "secret", "token")).before("peer", request)
    signed = dict(request.ext or {})
    assert signed.items() >= {"AccessKey": "key", "SecurityToken": "token", "topic": "Orders"}.items()
    assert signed["Signature"] == signature(
        {"topic": "Orders", "AccessKey": "key", "SecurityToken": "token"}, b"x", "secret"
    )
    CallHook(Hooks(()), Credentials("key", "secret", "token")).before("peer", request)
    assert request.ext == signed
    plain = Command(code=10, ext={"topic": "Orders"}, body=b"x")
    CallHook(Hooks(()), Credentials("key", "secret")).before("peer", plain)
    assert "SecurityToken" not in (plain.ext or {})
    assert (plain.ext or {})["Signature"] != signed["Signature"]
