"""Encrypted connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from interop.clients import CLIENTS, Client
from interop.servers import SERVERS, Server, running

TOPIC = "Secret"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a server's certificate and key, and the certificate that signed it."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "trusted.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (folder / "server.key").write_bytes(  # the form that Java reads
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return folder


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Takes plain and encrypted connections, as Apache's servers do unless told otherwise."""
    tls: dict[str, Any] = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(certificates / "server.pem"),
        "tls.server.keyPath": str(certificates / "server.key"),
    }
    with running(request.param, tmp_path_factory.mktemp(request.param), **tls) as server:
        server.create_topic(TOPIC)
        yield server


@pytest.mark.parametrize("client", [each for each in CLIENTS.values() if not each.name.endswith("binary")], ids=str)
def test_a_client_that_trusts_the_server_sends_and_receives(
    server: Server, client: Client, certificates: Path
) -> None:
    """All its connections, to the name server and to the broker, are encrypted and verified."""
    if reason := client.reason_against("tls", server.name):
        pytest.skip(f"not applicable: {reason}")
    with client.start(server.name_server, trusted=certificates / "trusted.pem") as driver:
        driver.ask("producer", name="P")
        body = f"from {client.name}"
        assert driver.ask("send", name="P", topic=TOPIC, body=body)["status"] == "SEND_OK"
        driver.ask("push", name=f"G_{client.name}".replace(".", "_"), topic=TOPIC)
        driver.wait(lambda events: any(each["body"] == body for each in events))
