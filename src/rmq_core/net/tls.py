"""TLS contexts for servers and clients, and their renewal while the program runs.

A server reads its certificate again when both the certificate and the key file have changed, and its trusted
certificates when that file has: the halves of a pair are replaced one after the other, and a mixed pair would
not load. Files that cannot be used are reported, and the context in use stays.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from enum import StrEnum

from rmq_core.config import ClientSettings
from rmq_core.errors import ConfigError

logger = logging.getLogger(__name__)


class TlsMode(StrEnum):
    """What a server speaks: plain only, both by the first byte of a connection, or TLS only."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether clients must show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a side of a TLS connection finds what it shows and what it trusts; empty means not given."""

    certificate: str = ""
    key: str = ""
    key_password: str = ""
    trusted: str = ""


class ServerTls:
    """The context that new connections of a server use."""

    def __init__(
        self,
        mode: TlsMode = TlsMode.DISABLED,
        files: TlsFiles | None = None,
        *,
        client_auth: ClientAuth = ClientAuth.NONE,
    ) -> None:
        self.mode = mode
        self.context: ssl.SSLContext | None = None
        """None where the server can only speak plain."""
        self._files = files or TlsFiles()
        self._client_auth = client_auth
        self._stamps = self._read_stamps()
        if mode is not TlsMode.DISABLED and self._files.certificate:
            self.context = server_context(self._files, client_auth=client_auth)
        elif mode is TlsMode.ENFORCING:
            raise ConfigError("tls.server.certPath", "", "TLS is enforced but no certificate is given")

    def reload_if_changed(self) -> bool:
        """Look at the files and renew the context where they ask for it. True where it was renewed."""
        if self.context is None:
            return False
        stamps = self._read_stamps()
        changed = [new != old for new, old in zip(stamps, self._stamps, strict=True)]
        certificate_changed, key_changed, trusted_changed = changed
        if not trusted_changed and not (certificate_changed and key_changed):
            return False
        try:
            self.context = server_context(self._files, client_auth=self._client_auth)
        except ConfigError as error:
            logger.warning("the new TLS files cannot be used, the old ones stay: %s", error)
            return False
        self._stamps = stamps
        logger.info("TLS files changed: new connections use %s", self._files.certificate)
        return True

    def _read_stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in (self._files.certificate, self._files.key, self._files.trusted)]


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def server_context(files: TlsFiles, *, client_auth: ClientAuth = ClientAuth.NONE) -> ssl.SSLContext:
    """Raises ConfigError naming the setting whose file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(context, files, side="server")
    if files.trusted:
        _load_trusted(context, files, side="server")
    if client_auth is ClientAuth.REQUIRE:
        context.verify_mode = ssl.CERT_REQUIRED
    elif client_auth is ClientAuth.OPTIONAL:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(files: TlsFiles, *, verify_server: bool) -> ssl.SSLContext:
    """Raises ConfigError naming the setting whose file cannot be used.

    Brokers are named by address, and their certificates seldom are: the host name is not compared.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if not verify_server:
        context.verify_mode = ssl.CERT_NONE
    elif files.trusted:
        _load_trusted(context, files, side="client")
    else:
        context.load_default_certs()
    if files.certificate:
        _load_pair(context, files, side="client")
    return context


def client_tls(settings: ClientSettings) -> ssl.SSLContext:
    """What settings say of connections with TLS. Raises ConfigError naming the setting that cannot be used."""
    files = TlsFiles(
        settings.tls_client_cert_path,
        settings.tls_client_key_path,
        settings.tls_client_key_password,
        settings.tls_client_trust_cert_path,
    )
    return client_context(files, verify_server=settings.tls_client_auth_server)


def _load_pair(context: ssl.SSLContext, files: TlsFiles, *, side: str) -> None:
    # Always a callable: with a None password OpenSSL would ask on the terminal for a protected key.
    password = files.key_password.encode
    try:
        context.load_cert_chain(files.certificate, files.key or None, password=password)
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = f"certificate and key {files.key!r} cannot be used: {error}"
        raise ConfigError(f"tls.{side}.certPath", files.certificate, reason) from error


def _load_trusted(context: ssl.SSLContext, files: TlsFiles, *, side: str) -> None:
    try:
        context.load_verify_locations(files.trusted)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls.{side}.trustCertPath", files.trusted, f"cannot be used: {error}") from error
