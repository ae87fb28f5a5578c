"""A broker that was given no name server, and starts its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

import rmq_core
from rmq_core import Message, Producer
from rmq_core.net.tls import TlsFiles, client_context


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_clients_with_tls_find_a_broker_by_its_own_name_server(tmp_path: Path, mode: str) -> None:
    """A certificate for the broker: a producer that trusts it needs both, name server and broker."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "trusted.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    settings = {
        "tls.server.mode": mode,
        "tls.server.certPath": str(tmp_path / "server.pem"),
        "tls.server.keyPath": str(tmp_path / "server.key"),
    }
    tls = client_context(TlsFiles(trusted=str(tmp_path / "trusted.pem")), verify_server=True)
    with (
        rmq_core.embedded(tmp_path / "store", **settings) as broker,
        Producer("PG", name_server=broker.name_server, tls=tls) as producer,
    ):
        assert producer.send(Message("Orders", b"hidden")).ok
