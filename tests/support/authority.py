"""Certificates for tests."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from rmq_core.net.tls import TlsFiles, client_context


class Authority:
    """A certificate authority with the files of a server and of a client."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.folder = folder
        self.trusted = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.trusted))
        self.write("server")
        self.write("client")

    def write(self, name: str, only: str = "") -> None:
        issued = self.ca.issue_cert("127.0.0.1")
        if only != "key":
            issued.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.pem"))
        if only != "certificate":
            issued.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))

    def files(self, name: str) -> TlsFiles:
        return TlsFiles(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"), "", str(self.trusted))

    def client(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        files = self.files("client") if with_certificate else TlsFiles(trusted=str(self.trusted))
        return client_context(files, verify_server=True)
