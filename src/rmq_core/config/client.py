"""Settings of outgoing connections: Java's NettyClientConfig, and TLS."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_core.config.settings import Settings, key, no_effect


@dataclass(kw_only=True)
class ClientSettings(Settings):
    """Outgoing connections of clients, and of brokers to name servers."""

    connect_timeout_millis: int = key(3000, "Longest time in ms to connect.", at_least=1)
    client_async_semaphore_value: int = key(
        65535, "Calls of one connection waiting for their answer at once.", at_least=1
    )

    use_tls: bool = key(False, "Connect with TLS.", name="useTLS")
    tls_client_cert_path: str = key("", "Certificate chain, PEM.", name="tls.client.certPath")
    tls_client_key_path: str = key("", "Private key of the certificate, PEM.", name="tls.client.keyPath")
    tls_client_key_password: str = key(
        "", "Password of the private key.", name="tls.client.keyPassword", secret=True
    )
    tls_client_trust_cert_path: str = key(
        "", "Certificates that sign those of servers, PEM.", name="tls.client.trustCertPath"
    )
    tls_client_auth_server: bool = key(
        False,
        "Check the certificate of the server; without it anybody on the way may read and change what is sent.",
        name="tls.client.authServer",
    )

    client_oneway_semaphore_value: int = no_effect(65535, "One-way requests being sent at once.")
    client_worker_threads: int = no_effect(4, "Threads that encode and decode.")
    channel_not_active_interval: int = no_effect(60_000, "Age in ms of a connection that is not used.")
    client_channel_max_idle_time_seconds: int = no_effect(
        120, "Time without a byte after which a connection is closed."
    )
    client_socket_snd_buf_size: int = no_effect(0, "Send buffer of a socket in bytes.")
    client_socket_rcv_buf_size: int = no_effect(0, "Receive buffer of a socket in bytes.")
    client_close_socket_if_timeout: bool = no_effect(True, "Close the connection of a call that timed out.")
