"""Runtime information over real sockets: every key that tools read is there, and says what is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_core.broker.runtime_info import readable
from rmq_core.clock import ManualClock
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import DelayOffsetSerializeWrapper, HARuntimeInfo, KVTable
from rmq_core.protocol.command import decode_command
from support.brokers import broker_cluster, run
from support.golden import exchanges


def recorded_keys() -> set[str]:
    """The keys of every recorded answer, without those that name a directory or a level."""
    keys: set[str] = set()
    for exchange in exchanges():
        if exchange.code == r.GetBrokerRuntimeInfo.code and exchange.response is not None:
            keys |= KVTable.decode(decode_command(exchange.response.frame).body).table.keys()
    return {key for key in keys if "/" not in key and not key.startswith("scheduleMessageOffset_")}


def test_every_key_of_both_versions_is_there(tmp_path: Path) -> None:
    """A key that is missing makes a broker disappear from the lists of tools."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            answer = await cluster.client().call(r.GetBrokerRuntimeInfo())
            table = KVTable.decode(answer.body).table
            expected = recorded_keys()
            assert len(expected) >= 60
            assert (expected | {"remainHowManyDataToCommit"}) - table.keys() == set()
            assert all(isinstance(value, str) for value in table.values())

    run(main())


def test_the_values_say_what_the_broker_does(tmp_path: Path) -> None:
    """Messages, a delayed one, pulls, time that passes."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client, broker = cluster.client(), cluster.broker
            empty = KVTable.decode((await client.call(r.GetBrokerRuntimeInfo())).body).table
            assert empty["earliestMessageTimeStamp"] == "-1"
            first = await client.send("T", b"first")
            for _ in range(8):
                await client.send("T", b"x")
            await client.send("T", b"later", properties={"DELAY": "3"})
            assert len(await client.messages("T")) == 9
            await clock.advance(10_000)
            broker.boot_time_ms = broker.now_ms() - 90_061_000
            table = KVTable.decode((await client.call(r.GetBrokerRuntimeInfo())).body).table
            assert first.code == 0
            assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
            assert (table["brokerVersionDesc"], table["brokerVersion"]) == ("V5_3_3", "479")
            assert int(table["msgPutTotalTodayNow"]) >= 10
            assert table["getTransferredTps"] == table["getTransferedTps"]
            assert len(table["putTps"].split(" ")) == 3
            assert table["commitLogMaxOffset"] == str(broker.store.log.end)
            assert table["commitLogMinOffset"] == "0"
            assert table["earliestMessageTimeStamp"] == str(broker.store.store_time_ms("T", 0, 0))
            assert table["bootTimestamp"] == str(broker.boot_time_ms)
            assert table["putMessageFailedTimes"] == "0"
            assert 0 < float(table["commitLogDiskRatio"]) <= 1
            assert table["commitLogDirCapacity"].startswith("Total : ")
            assert table["scheduleMessageOffset_3"] == "1,1"

    run(main())


def test_the_free_space_counts_what_is_kept_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that keeps a quarter for the administrator: Apache's broker calls it free, and full what is not
    for users: the ratio is that of the cleaning, rounded up."""
    of_files = os.statvfs(tmp_path)
    reserved = list(of_files)
    reserved[:5] = [4096, 4096, 4 << 18, 2 << 18, 1 << 18]

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(reserved))
            answer = await cluster.client().call(r.GetBrokerRuntimeInfo())
            table = KVTable.decode(answer.body).table
            assert table["commitLogDirCapacity"] == "Total : 4.0 GiB, Free : 2.0 GiB."
            assert table["commitLogDiskRatio"] == "0.67"

    run(main())


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 60, "3072.0 PiB"),
    ],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    """The borders of units, and more than the largest."""
    assert readable(size) == text


def test_progress_of_delay_levels_and_of_replication_is_told(tmp_path: Path) -> None:
    """As a replica and a tool ask for it."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client = cluster.client()
            await client.send("T", properties={"DELAY": "1"})
            await clock.advance(1_000)
            await clock.advance(1_000)
            answer = await client.call(r.GetAllDelayOffset())
            assert DelayOffsetSerializeWrapper.decode(answer.body).offset_table == {1: 1}
            ha = HARuntimeInfo.decode((await client.call(r.GetBrokerHaStatus())).body)
            assert (ha.master, ha.master_commit_log_max_offset) == (True, cluster.broker.store.log.end)

    run(main())
