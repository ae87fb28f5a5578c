"""Brokers on a loop of their own thread, for tests of what blocks; and a proxy in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from rmq_core.broker.app import BrokerApp
from rmq_core.broker.broker import Broker
from rmq_core.client.options import ClientOptions, client_options
from rmq_core.protocol import requests as r
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.record import BatchRecord, encode_batch
from support.brokers import Client, Cluster, broker_cluster
from support.cluster import address_of
from support.proxy import Proxy

T = TypeVar("T")


class Threaded:
    """A cluster that lives in another thread; `do` runs a coroutine there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: Cluster) -> None:
        self.loop = loop
        self.cluster = cluster
        self._clients: dict[int, Client] = {}

    @property
    def name_server(self) -> str:
        return ";".join(address_of(each) for each in self.cluster.name_servers)

    @property
    def broker(self) -> Broker:
        return self.cluster.broker

    def do(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 60) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def options(self, **arguments: Any) -> ClientOptions:
        given: Any = {"name_server": self.name_server, **arguments}
        return client_options(given)

    def client(self, number: int = 0) -> Client:
        """A raw client of a broker, to be used within `do`."""
        if number not in self._clients:
            self._clients[number] = self.do(_made(lambda: self.cluster.client(number)))
        return self._clients[number]

    def create_topic(self, name: str, *, queues: int = 4, number: int = 0) -> None:
        """Make a topic, or give it another number of queues."""
        broker = self.cluster.apps[number].broker
        # Name servers take no change of a topic whose version came with another topic that was made meanwhile.
        until(lambda: not broker.topics._tasks and not broker.registration._tasks, "earlier topics are announced")
        request = r.UpdateAndCreateTopic(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        self.do(self.client(number).call(request))

    def delete_topic(self, name: str, *, number: int = 0) -> None:
        """Take a topic from a broker and from the name servers, as tools do."""
        self.do(self.client(number).call(r.DeleteTopicInBroker(name)))
        for each in range(len(self.cluster.name_servers)):
            names = self.do(_made(lambda each=each: self.cluster.name_client(each)))  # type: ignore[misc]
            self.do(names.call(r.DeleteTopicInNamesrv(name)))

    def send(
        self, topic: str, bodies: list[bytes], *, queue_id: int = 0, tags: list[str] | None = None, number: int = 0
    ) -> None:
        """Messages of one queue, in order, in batches."""
        client = self.client(number)
        names = tags or [""] * len(bodies)
        start = 0
        while start < len(bodies):
            end, size = start, 0
            while end < len(bodies) and end - start < 500 and (end == start or size + len(bodies[end]) < 2_000_000):
                size += len(bodies[end])
                end += 1
            batch = encode_batch(
                BatchRecord(0, body, encode_properties({"TAGS": tag} if tag else {}))
                for body, tag in zip(bodies[start:end], names[start:end], strict=True)
            )
            start = end
            request = r.SendBatchMessage(
                producer_group="PG",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=queue_id,
                sys_flag=0,
                born_timestamp=_now_ms(),
                flag=0,
                properties="",
                batch=True,
            )
            self.do(client.call(request, batch))

    def restart(self, number: int = 0) -> BrokerApp:
        """Stop a broker and start it again on the same files and port."""
        app = self.cluster.apps[number]
        port = int(app.broker.address.rpartition(":")[2])
        self.do(app.close(drain_ms=200))
        self._clients.pop(number, None)
        return self.start_again(app, number, port)

    def stop(self, number: int = 0) -> Callable[[], BrokerApp]:
        """Stop a broker; what is returned starts it again."""
        app = self.cluster.apps[number]
        port = int(app.broker.address.rpartition(":")[2])
        self.do(app.close(drain_ms=200))
        self._clients.pop(number, None)
        return lambda: self.start_again(app, number, port)

    def start_again(self, app: BrokerApp, number: int, port: int) -> BrokerApp:
        again = BrokerApp(
            app.settings,
            app.store_settings,
            dataclasses.replace(app.server_settings, listen_port=port),
            memory_size=24 << 30,
        )
        self.do(again.start())
        self.cluster.apps[number] = again
        return again

    @contextlib.contextmanager
    def proxy(self, target: str | None = None) -> Iterator[ThreadedProxy]:
        """Something in between that can break."""
        inner = Proxy(target or self.broker.address)
        self.do(inner.__aenter__())
        try:
            yield ThreadedProxy(self, inner)
        finally:
            self.do(inner.__aexit__(None, None, None))


class ThreadedProxy:
    """A proxy on the cluster's loop."""

    def __init__(self, owner: Threaded, inner: Proxy) -> None:
        self._owner = owner
        self._inner = inner
        self.address = inner.address

    @property
    def connections_made(self) -> int:
        return self._inner.connections_made

    def cut(self) -> None:
        self._owner.do(_made(self._inner.cut))

    def stall(self) -> None:
        self._owner.do(_made(self._inner.stall))

    def resume(self) -> None:
        self._owner.do(_made(self._inner.resume))


async def _made(make: Callable[[], T]) -> T:
    return make()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def until(is_true: Callable[[], Any], what: str, *, timeout_s: float = 30) -> None:
    """Wait for a condition; fails naming it."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)


@contextlib.contextmanager
def threaded_cluster(folder: Path, **changes: Any) -> Iterator[Threaded]:
    """broker_cluster() in a thread."""
    started = threading.Event()
    found: list[Threaded] = []
    failed: list[BaseException] = []
    stopping = asyncio.Event()

    async def main() -> None:
        async with broker_cluster(folder, **changes) as cluster:
            found.append(Threaded(asyncio.get_running_loop(), cluster))
            started.set()
            await stopping.wait()

    def serve() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=serve, name="cluster")
    thread.start()
    assert started.wait(60)
    assert not failed, failed
    try:
        yield found[0]
    finally:
        found[0].loop.call_soon_threadsafe(stopping.set)
        thread.join(60)
        assert not thread.is_alive()
