"""An Apache name server and broker of one version, as processes on free ports of this machine."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interop.artifacts import java_class_path

START_S: Final = 90
STOP_S: Final = 30
OPENS: Final = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "sun.nio.ch", "java.lang", "jdk.internal.misc", "jdk.internal.ref")
    ),
]
_LOGBACK: Final = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %m%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


class JavaProcess:
    """A Java program whose output is kept, and which is ended by its id."""

    def __init__(self, command: list[str], ready: str) -> None:
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._said = ready
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if self._said in line:
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        """Raises AssertionError with its last lines where it did not come up."""
        ready = self._ready.wait(START_S) and any(self._said in line for line in self.lines)
        assert ready, "".join(self.lines[-30:])

    def stop(self, *, kill: bool = False) -> None:
        if self.process.poll() is None:
            if kill:
                self.process.kill()
            else:
                self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@dataclass
class Apache:
    """A running pair of name server and broker."""

    version: str
    name_server: str
    broker: str
    store: Path
    class_path: str
    pid: int
    """The broker's process."""

    def mqadmin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command of its mqadmin, against any name server that the arguments name."""
        return mqadmin(self.version, *arguments, home=self.store.parent)


def mqadmin(version: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Apache's administration tool."""
    write_logback(home)
    return subprocess.run(
        [
            "java",
            "-Xmx256m",
            f"-Drocketmq.home.dir={home}",
            f"-Duser.home={home}",
            "-cp",
            java_class_path(version),
            "org.apache.rocketmq.tools.command.MQAdminStartup",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def apache(
    version: str, home: Path, *, kill: bool = False, options: Sequence[str] = (), **settings: str
) -> Iterator[Apache]:
    """Start both, and stop both in the end, or kill the broker.

    settings are those of the broker's file, options those of both Java machines.
    """
    with (
        apache_names(version, home, options=options) as name_server,
        apache_broker(version, home, name_server, kill=kill, options=options, **settings) as broker,
    ):
        yield broker


@contextlib.contextmanager
def apache_names(version: str, home: Path, *, options: Sequence[str] = ()) -> Iterator[str]:
    """A name server alone; gives its address."""
    class_path = java_class_path(version)
    home.mkdir(parents=True, exist_ok=True)
    write_logback(home)
    port = _free_ports()[0]
    (home / "namesrv.properties").write_text(f"listenPort={port}\nkvConfigPath={home}/kv.json\n")
    names = JavaProcess(_command(class_path, home, "namesrv.Namesrv", "256m", options), "boot success")
    try:
        names.wait_ready()
        yield f"127.0.0.1:{port}"
    finally:
        names.stop()


@contextlib.contextmanager
def apache_broker(
    version: str,
    home: Path,
    name_server: str,
    *,
    kill: bool = False,
    options: Sequence[str] = (),
    **settings: str,
) -> Iterator[Apache]:
    """A broker that registers with a name server of any kind."""
    class_path = java_class_path(version)
    home.mkdir(parents=True, exist_ok=True)
    write_logback(home)
    port = _free_ports()[1]
    store = home / "store"
    broker_settings = {
        "brokerName": "apache",
        "brokerClusterName": "DefaultCluster",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": str(port + 1),
        "namesrvAddr": name_server,
        "storePathRootDir": str(store),
        "mappedFileSizeCommitLog": str(16 << 20),
        "maxHashSlotNum": "50000",
        "maxIndexNum": "200000",
        "enablePropertyFilter": "true",
        # A full laptop must not fail a test.
        "diskMaxUsedSpaceRatio": "99",
        **settings,
    }
    (home / "broker.properties").write_text("".join(f"{name}={value}\n" for name, value in broker_settings.items()))
    broker = JavaProcess(_command(class_path, home, "broker.Broker", "768m", options), "boot success")
    try:
        broker.wait_ready()
        yield Apache(version, name_server, f"127.0.0.1:{port}", store, class_path, broker.process.pid)
    finally:
        broker.stop(kill=kill)


def _command(class_path: str, home: Path, program: str, heap: str, options: Sequence[str]) -> list[str]:
    file = "namesrv.properties" if program.startswith("namesrv") else "broker.properties"
    ratios = [f"-Drocketmq.broker.diskSpace{name}Ratio=0.99" for name in ("WarningLevel", "CleanForcibly")]
    return [
        *("java", *OPENS, f"-Xmx{heap}", "-XX:MaxDirectMemorySize=512m", *ratios, *options),
        *(f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", class_path),
        *(f"org.apache.rocketmq.{program}Startup", "-c", str(home / file)),
    ]


def write_logback(home: Path) -> None:
    """Apache's programs log to their output, warnings only."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("logback_broker.xml", "logback_namesrv.xml", "logback_tools.xml"):
        (home / "conf" / name).write_text(_LOGBACK)


def _free_ports() -> tuple[int, int]:
    """A port for the name server, and one for a broker whose neighbours -2 and +1 are free too."""
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        while True:
            middle = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = int(middle.getsockname()[1])
            try:
                for neighbour in (port - 2, port + 1):
                    stack.enter_context(socket.create_server(("127.0.0.1", neighbour)))
            except OSError:
                continue
            return int(names.getsockname()[1]), port
