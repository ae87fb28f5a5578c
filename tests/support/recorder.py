"""A TCP proxy that keeps the frames of a scenario, decoded: each request of a client with its answer.

It runs on a thread of its own, so that blocking programs and other processes can be on either side of it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol.command import Command, FrameDecoder, decode_command

_READ_SIZE = 65536


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request and its answer."""

    request: Command
    answer: Command


@dataclass
class Recorder:
    """What ran between the clients and one server."""

    target: str
    address: str = ""
    """Where clients connect to."""
    _exchanges: list[Recorded] = field(default_factory=list)
    _sockets: set[socket.socket] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def recorded(self) -> list[Recorded]:
        """What there is so far, in the order of the answers."""
        with self._lock:
            return list(self._exchanges)

    def accept(self, listener: socket.socket) -> None:
        """Forward every connection until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                host, _, port = self.target.rpartition(":")
                far = socket.create_connection((host, int(port)))
                waiting: dict[int, Command] = {}
                with self._lock:
                    self._sockets |= {near, far}
                for source, sink, is_answer in ((near, far, False), (far, near, True)):
                    self.start(threading.Thread(target=self._pump, args=(source, sink, waiting, is_answer)))

    def start(self, thread: threading.Thread) -> None:
        """Start a thread that close() waits for."""
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, waiting: dict[int, Command], is_answer: bool
    ) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(OSError, RemoteProtocolError):
            while data := source.recv(_READ_SIZE):
                # Kept before it goes on: who has the answer finds it here.
                decoder.feed(data)
                while (frame := decoder.next()) is not None:
                    self._keep(decode_command(frame), waiting, is_answer=is_answer)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _keep(self, command: Command, waiting: dict[int, Command], *, is_answer: bool) -> None:
        with self._lock:
            if is_answer and command.is_response:
                request = waiting.pop(command.opaque, None)
                if request is not None:
                    self._exchanges.append(Recorded(request, command))
            elif not is_answer and not command.is_response:
                waiting[command.opaque] = command

    def close(self) -> None:
        """End every connection and thread."""
        with self._lock:
            sockets, threads = list(self._sockets), list(self._threads)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def recording(target: str) -> Iterator[Recorder]:
    """A recorder in front of a server, until the end of the block."""
    recorder = Recorder(target)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        recorder.address = f"127.0.0.1:{listener.getsockname()[1]}"
        accepting = threading.Thread(target=recorder.accept, args=(listener,))
        accepting.start()
        try:
            yield recorder
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            recorder.close()
