"""TLS in its three modes, certificates replaced while the server runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from net.echo import Echo, serving
from rmq_core.clock import ManualClock
from rmq_core.errors import ConfigError, ConnectError
from rmq_core.net.blocking import BlockingChannel
from rmq_core.net.channel import Channel
from rmq_core.net.tls import ClientAuth, ServerTls, TlsFiles, TlsMode, client_context
from support.authority import Authority
from support.loops import on_both_loops, run


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@on_both_loops
def test_permissive_mode_serves_plain_and_encrypted_clients_on_one_port(
    loop_name: str, authority: Authority
) -> None:
    """Both kinds at once, with bodies larger than a TLS record, and a peer that says nothing."""

    async def main() -> None:
        tls = ServerTls(TlsMode.PERMISSIVE, authority.files("server"))
        async with serving(tls=tls) as (_, address):
            silent = await asyncio.open_connection(*address.split(":"))
            plain, encrypted = Channel(address), Channel(address, tls=authority.client())
            for channel in (plain, encrypted, plain, encrypted):
                answer = await channel.call(Echo("both"), bytes(300_000))
                assert len(answer.body) == 300_000

            def block() -> None:
                with BlockingChannel(address, tls=authority.client()) as blocking:
                    assert len(blocking.call(Echo("thread"), bytes(300_000)).body) == 300_000

            await asyncio.to_thread(block)
            silent[1].close()
            await plain.close()
            await encrypted.close()

    run(loop_name, main())


@on_both_loops
def test_enforcing_mode_refuses_plain_and_disabled_mode_refuses_encrypted(
    loop_name: str, authority: Authority
) -> None:
    """Each client meets the server of the other kind."""

    async def main() -> None:
        tls = ServerTls(TlsMode.ENFORCING, authority.files("server"))
        async with serving(tls=tls) as (_, address):
            with pytest.raises(ConnectError):
                await Channel(address).call(Echo("plain"))
            channel = Channel(address, tls=authority.client())
            assert (await channel.call(Echo("encrypted"))).header.text == "encrypted"
            await channel.close()
        async with serving(tls=ServerTls(TlsMode.DISABLED, authority.files("server"))) as (_, address):
            with pytest.raises(ConnectError):
                await Channel(address, tls=authority.client()).call(Echo("encrypted"))
            channel = Channel(address)
            assert (await channel.call(Echo("plain"))).header.text == "plain"
            await channel.close()

    run(loop_name, main())


@on_both_loops
def test_clients_must_show_a_certificate_where_it_is_required(loop_name: str, authority: Authority) -> None:
    """With and without one."""

    async def main() -> None:
        tls = ServerTls(TlsMode.ENFORCING, authority.files("server"), client_auth=ClientAuth.REQUIRE)
        async with serving(tls=tls) as (_, address):
            with pytest.raises(ConnectError):
                await Channel(address, tls=authority.client()).call(Echo("nobody"))
            channel = Channel(address, tls=authority.client(with_certificate=True))
            assert (await channel.call(Echo("known"))).header.text == "known"
            await channel.close()

    run(loop_name, main())


async def serial_of_server(address: str, context: ssl.SSLContext) -> str:
    host, port = address.split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return str(serial)


@on_both_loops
def test_a_certificate_is_replaced_while_the_server_runs(loop_name: str, authority: Authority) -> None:
    """Half of a pair changes nothing, a broken pair changes nothing, a whole one is used; old connections live."""

    async def main() -> None:
        clock = ManualClock()
        tls = ServerTls(TlsMode.PERMISSIVE, authority.files("server"))
        context = authority.client()
        async with serving(tls=tls, clock=clock) as (_, address):
            old = Channel(address, tls=context)
            await old.call(Echo("before"))
            first = await serial_of_server(address, context)
            authority.write("server", only="certificate")
            await clock.advance(1_000)
            assert await serial_of_server(address, context) == first
            authority.write("server", only="key")
            await clock.advance(1_000)
            assert (
                await serial_of_server(address, context) == first
            )  # both changed, but they do not belong together
            authority.write("server")
            await clock.advance(1_000)
            assert await serial_of_server(address, context) != first
            assert (await old.call(Echo("after"))).header.text == "after"
            await old.close()

    run(loop_name, main())


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    """No file, garbage, and no certificate where TLS is enforced."""
    with pytest.raises(ConfigError, match=r"tls.server.certPath=.*none.pem"):
        ServerTls(TlsMode.PERMISSIVE, TlsFiles(str(tmp_path / "none.pem")))
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    with pytest.raises(ConfigError, match=r"tls.server.certPath"):
        ServerTls(TlsMode.PERMISSIVE, TlsFiles(str(garbage), str(garbage)))
    with pytest.raises(ConfigError, match=r"tls.client.trustCertPath=.*garbage"):
        client_context(TlsFiles(trusted=str(garbage)), verify_server=True)
    with pytest.raises(ConfigError, match="enforced"):
        ServerTls(TlsMode.ENFORCING)
