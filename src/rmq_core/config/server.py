"""Settings of what listens: Java's NettyServerConfig, limits of our own, and TLS."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_core.config.settings import Settings, key, no_effect
from rmq_core.errors import ConfigError

MIB = 1 << 20

# A longer frame could begin with 0x16, by which a permissive listener recognises TLS.
FRAME_LENGTH_LIMIT = 0x16 << 24


@dataclass(kw_only=True)
class ServerSettings(Settings):
    """The network server of a name server or a broker."""

    bind_address: str = key("0.0.0.0", "Address to listen on.")
    listen_port: int = key(
        0,
        "Port to listen on; 0 takes a free one. Programs bring their own default: 9876 for a name server, "
        "10911 for a broker.",
        at_least=0,
        at_most=65535,
    )
    server_channel_max_idle_time_seconds: int = key(
        120, "Time without a byte in either direction after which a connection is closed.", at_least=1
    )
    enable_shutdown_gracefully: bool = key(
        False,
        "While stopping, answer requests of 5.3.2 and newer clients with GO_AWAY: they go elsewhere.",
        live=True,
    )
    shutdown_wait_time_seconds: int = key(
        30, "Time that calls get to finish while stopping gracefully; otherwise it is 3 s.", at_least=0, live=True
    )
    server_socket_backlog: int = key(1024, "Connections that may wait to be accepted.", at_least=1)

    frame_max_length: int = key(
        16 * MIB,
        "Longest frame in bytes, its four length bytes included.",
        at_least=1024,
        at_most=FRAME_LENGTH_LIMIT,
    )
    connections_max: int = key(
        0, "Connections open at once; 0 derives it from the limit of open files.", at_least=0
    )
    calls_in_flight_max: int = key(
        10_000, "Requests of one connection being served at once; further ones are refused.", at_least=1
    )
    output_soft_limit_bytes: int = key(
        MIB, "Output waiting on one connection above which its new pulls have to wait.", at_least=1
    )
    output_hard_limit_bytes: int = key(
        64 * MIB, "Output waiting on one connection above which nothing more is read from it.", at_least=1
    )
    unfinished_frames_max_bytes: int = key(
        512 * MIB, "Bytes of frames that have not arrived whole, all connections together.", at_least=1
    )

    tls_server_mode: str = key(
        "permissive",
        "disabled: plain connections only. permissive: both, told apart by the first byte; plain only where "
        "no certificate is given. enforcing: TLS only.",
        name="tls.server.mode",
        one_of=("disabled", "permissive", "enforcing"),
    )
    tls_server_cert_path: str = key("", "Certificate chain, PEM.", name="tls.server.certPath")
    tls_server_key_path: str = key("", "Private key of the certificate, PEM.", name="tls.server.keyPath")
    tls_server_key_password: str = key(
        "", "Password of the private key.", name="tls.server.keyPassword", secret=True
    )
    tls_server_trust_cert_path: str = key(
        "", "Certificates that sign those of clients, PEM.", name="tls.server.trustCertPath"
    )
    tls_server_need_client_auth: str = key(
        "none",
        "Whether clients have to show a certificate.",
        name="tls.server.need.client.auth",
        one_of=("none", "optional", "require"),
    )

    server_worker_threads: int = no_effect(8, "Threads that encode and decode.")
    server_callback_executor_threads: int = no_effect(0, "Threads for requests without an executor.")
    server_selector_threads: int = no_effect(3, "Threads that read and write sockets.")
    server_oneway_semaphore_value: int = no_effect(256, "One-way requests being sent at once.")
    server_async_semaphore_value: int = no_effect(64, "Asynchronous requests being sent at once.")
    server_socket_snd_buf_size: int = no_effect(0, "Send buffer of a socket in bytes.")
    server_socket_rcv_buf_size: int = no_effect(0, "Receive buffer of a socket in bytes.")
    write_buffer_high_water_mark: int = no_effect(0, "Waiting output that stops writers; see outputSoftLimitBytes.")
    write_buffer_low_water_mark: int = no_effect(
        0, "Waiting output that lets writers go on; see outputSoftLimitBytes."
    )
    server_netty_worker_group_enable: bool = no_effect(True, "Use Netty's worker group.")
    server_pooled_byte_buf_allocator_enable: bool = no_effect(True, "Take buffers from a pool.")
    use_epoll_native_selector: bool = no_effect(False, "Use Netty's own epoll transport.")

    def check_together(self) -> None:
        if self.output_hard_limit_bytes < self.output_soft_limit_bytes:
            reason = f"must be at least outputSoftLimitBytes={self.output_soft_limit_bytes}"
            raise ConfigError("outputHardLimitBytes", self.output_hard_limit_bytes, reason)
        if self.tls_server_mode == "enforcing" and not self.tls_server_cert_path:
            raise ConfigError("tls.server.mode", self.tls_server_mode, "needs tls.server.certPath")
