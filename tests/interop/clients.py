"""The clients of the matrix: how each is started, and what it cannot do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from interop.artifacts import VERSIONS, go_program, java_class_path, node_folder
from interop.driver import Driver

HERE: Final = Path(__file__).parent


_SERVERS_LACK: Final = {
    "positions on apache-5.3.3": "new groups begin at 0 there while a queue's first message is in the page cache",
}


@dataclass(frozen=True, slots=True)
class Client:
    """One client of the matrix."""

    name: str
    command: Callable[..., list[str]]
    """The program, to which the name server's address is added. Skips where it cannot be had. Where it can speak
    TLS it takes the certificate to trust, as trusted=."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that it cannot run, on any server or ("scenario on server") on one, each with the reason."""

    def reason_against(self, scenario: str, server: str) -> str | None:
        """Why it cannot run a scenario on a server; None where it can."""
        on_server = f"{scenario} on {server}"
        return self.lacks.get(scenario) or self.lacks.get(on_server) or _SERVERS_LACK.get(on_server)

    def __str__(self) -> str:
        return self.name

    def start(self, name_server: str, *, trusted: Path | None = None) -> Driver:
        """A new process of it; with TLS where a certificate to trust is given."""
        command = self.command() if trusted is None else self.command(trusted=trusted)
        return Driver([*command, name_server])


def _java(version: str, *, binary: bool) -> Client:
    option = ["-Drocketmq.serialize.type=ROCKETMQ"] if binary else []
    lacks = {}
    if version.startswith("5.3"):
        lacks["request"] = "its request() gives up as soon as the send is acknowledged, on Apache's own broker too"
        lacks["lite_pull on apache-4.9.7"] = (
            "its lite pull consumer sends request 361, which that broker does not know"
        )

    def command(*, trusted: Path | None = None) -> list[str]:
        tls = [] if trusted is None else ["-Dtls.enable=true", f"-Dtls.config.file={_java_tls_file(trusted)}"]
        return ["java", "-Xmx256m", *option, *tls, "-cp", java_class_path(version), "Driver"]

    return Client(f"java-{version}-{'binary' if binary else 'json'}", command, lacks)


def _java_tls_file(trusted: Path) -> Path:
    file = trusted.with_suffix(".properties")
    file.write_text(f"tls.test.mode.enable=false\ntls.client.authServer=true\ntls.client.trustCertPath={trusted}\n")
    return file


def _ours(*, trusted: Path | None = None) -> list[str]:
    return [sys.executable, str(HERE / "python_driver.py"), *([f"--trust={trusted}"] if trusted else [])]


_GO_LACKS: Final = {
    "lite_pull": "it has no lite pull consumer",
    "queries": "it has no such call",
    "tls": "it has no TLS",
}
_NODE_LACKS: Final = {
    **dict.fromkeys(
        ("every_send", "batch", "orderly", "transactions", "lite_pull", "request", "pull", "queries"),
        "it has no such call",
    ),
    "tls": "it has no TLS",
    "reset on apache-4.9.7": "it does not serve request 220, by which that broker has members move",
}
CLIENTS: Final[dict[str, Client]] = {
    client.name: client
    for client in (
        Client("ours", _ours),
        *(_java(version, binary=binary) for version in VERSIONS["rocketmq"] for binary in (False, True)),
        Client(f"go-{VERSIONS['go']}", lambda: [go_program()], _GO_LACKS),
        Client(f"ali-ons-{VERSIONS['ali_ons']}", lambda: ["node", str(node_folder() / "driver.js")], _NODE_LACKS),
    )
}
