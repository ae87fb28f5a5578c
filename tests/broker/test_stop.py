"""A broker that stops answers what it was asked before it lets its clients go."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rmq_core.store.disk import Disk
from support.brokers import broker_app, broker_cluster, run
from support.cluster import address_of, name_servers


@pytest.mark.parametrize("passes", [0, 1, 2, 5])
def test_a_start_that_is_given_up_leaves_nothing_behind(tmp_path: Path, passes: int) -> None:
    """Cancelled before, while and after its store is opened in a thread; another broker can start right behind."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,):
            for _ in range(5):
                starting = asyncio.ensure_future(broker_app(tmp_path, address_of(server)).start())
                for _ in range(passes):
                    await asyncio.sleep(0)
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
            app = broker_app(tmp_path, address_of(server))
            await app.start()
            await app.close(drain_ms=100)

    run(main(), timeout_s=120)


@pytest.mark.parametrize("is_hot", [True, False])
def test_senders_hear_of_what_a_stop_makes_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hot: bool
) -> None:
    """SYNC_FLUSH, and a disk that is busy until the stop is under way: stored messages are answered, plain ones and
    those that go the long way, and no more are taken."""
    is_free = threading.Event()
    sync = Disk.sync

    def held_sync(disk: Disk, path: Path) -> None:
        if path.parent.name == "commitlog":
            is_free.wait(60)
        sync(disk, path)

    async def main() -> None:
        async with broker_cluster(tmp_path, flush_disk_type="SYNC_FLUSH") as cluster:
            client = cluster.client()
            store, app = cluster.broker.store, cluster.apps[0]
            await client.send("Orders", b"first")
            monkeypatch.setattr(Disk, "sync", held_sync)
            properties = {"UNIQ_KEY": "k"} if is_hot else {}
            sends = [asyncio.ensure_future(client.send("Orders", b"x", properties=properties)) for _ in range(8)]
            while store.max_offset("Orders", 0, is_committed=False) != 9:
                await asyncio.sleep(0.001)
            stopping = asyncio.ensure_future(app.close(drain_ms=30_000))
            while app._server._listeners:
                await asyncio.sleep(0.001)
            is_free.set()
            assert [(await each).code for each in sends] == [0] * 8
            await stopping

    try:
        run(main(), timeout_s=120)
    finally:
        is_free.set()
