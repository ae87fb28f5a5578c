"""Groups over real sockets: made, changed, refused, deleted, kept from topics; and how far they are behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    GroupForbidden,
    QueryConsumeTimeSpanBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from rmq_core.protocol.message import MessageQueue
from support.brokers import Client, broker_cluster, run


async def code_of(call: Any) -> int:
    try:
        await call
    except BrokerError as error:
        assert error.remark
        return error.code
    return 0


async def update(client: Client, config: SubscriptionGroupConfig) -> None:
    await client.call(r.UpdateAndCreateSubscriptiongroup(), config.encode())


async def group_of(client: Client, name: str) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig.decode((await client.call(r.GetSubscriptiongroupConfig(name))).body)


def test_a_group_is_kept_with_what_its_sender_left_out(tmp_path: Path) -> None:
    """A 4.9 sender knows fewer switches; a later change by it keeps the newer ones."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await update(client, SubscriptionGroupConfig("G", retry_max_times=3, consume_timeout_minute=7))
            await update(client, SubscriptionGroupConfig("G", retry_max_times=4))
            config = await group_of(client, "G")
            assert (config.retry_max_times, config.consume_timeout_minute) == (4, 7)
            assert config.group_retry_policy is not None
            saved = orjson.loads((tmp_path / "broker-a" / "config" / "subscriptionGroup.json").read_bytes())
            assert saved["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 4

    run(main())


@pytest.mark.parametrize("name", ["", "bad group?", "x" * 121])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    """Alone and in a list, of which then nothing is made."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            bad = SubscriptionGroupConfig(name)
            assert await code_of(update(client, bad)) == 29
            both = SubscriptionGroupList((SubscriptionGroupConfig("Good"), bad)).encode()
            assert await code_of(client.call(r.UpdateAndCreateSubscriptiongroupList(), both)) == 29
            assert {"Good", name}.isdisjoint(cluster.broker.groups.table)
            good = SubscriptionGroupList((SubscriptionGroupConfig("Good"),)).encode()
            assert await code_of(client.call(r.UpdateAndCreateSubscriptiongroupList(), good)) == 0
            assert "Good" in cluster.broker.groups.table
            for queues in (-1, 1 << 20):
                assert await code_of(update(client, SubscriptionGroupConfig("Good", retry_queue_nums=queues))) == 29

    run(main())


def test_more_retry_queues_enlarge_the_retry_topic(tmp_path: Path) -> None:
    """Fewer do not make it smaller."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await cluster.broker.topics.create_retry_topic("G")
            for queues, expected in ((3, 3), (2, 3)):
                await update(client, SubscriptionGroupConfig("G", retry_queue_nums=queues))
                assert cluster.broker.topics.table["%RETRY%G"].read_queue_nums == expected

    run(main())


def test_an_unknown_group_is_made_when_it_is_looked_at_if_that_is_allowed(tmp_path: Path) -> None:
    """Allowed, and not."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            assert (await group_of(client, "New")).retry_max_times == 16
            cluster.broker.settings.auto_create_subscription_group = False
            assert await code_of(client.call(r.GetSubscriptiongroupConfig("Newer"))) == 26

    run(main())


@pytest.mark.parametrize("switch", [{"remove_offset": True}, {"clean_offset": True}, {}])
def test_a_deleted_group_takes_its_offsets_along_if_that_is_asked(tmp_path: Path, switch: dict[str, bool]) -> None:
    """Both names of the switch, and none."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, broker = cluster.client(), cluster.broker
            await client.send("T")
            await update(client, SubscriptionGroupConfig("G"))
            broker.offsets.commit("G", "T", 0, 1)
            await client.call(r.DeleteSubscriptiongroup("G", **switch))
            assert broker.groups.find("G") is None
            assert broker.offsets.query("G", "T", 0) == (-1 if switch else 1)
            assert await code_of(client.call(r.DeleteSubscriptiongroup("Nobody"))) == 0

    run(main())


def test_all_groups_are_given_whole_or_in_pages(tmp_path: Path) -> None:
    """With what is forbidden to them."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await update(client, SubscriptionGroupConfig("G"))
            await cluster.broker.groups.set_forbidden("G", "T", 4)
            answer = await client.call(r.GetAllSubscriptiongroupConfig())
            whole = SubscriptionGroupWrapper.decode(answer.body)
            assert answer.header.total_group_num is None
            assert set(whole.subscription_group_table) == set(cluster.broker.groups.table)
            assert whole.forbidden_table == {"G": {"T": 4}}
            page = await client.call(r.GetAllSubscriptiongroupConfig(0, None, 2))
            assert page.header.total_group_num == len(whole.subscription_group_table)
            assert len(SubscriptionGroupWrapper.decode(page.body).subscription_group_table) == 2

    run(main())


def test_a_group_can_be_kept_from_a_topic(tmp_path: Path) -> None:
    """Asked, forbidden, found after a restart of the table, and allowed again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()

            async def readable(wanted: bool | None) -> bool | None:
                answer = await client.call(r.UpdateAndGetGroupForbidden("G", "T", wanted))
                return GroupForbidden.decode(answer.body).readable

            assert await readable(None) is True
            assert await readable(False) is False
            assert await readable(None) is False
            assert cluster.broker.groups.is_read_forbidden("G", "T")
            assert await readable(True) is True
            assert not cluster.broker.groups.forbidden

    run(main())


async def consumed(client: Client, broker: Any) -> None:
    """Ten messages in T/0, of which G has been given eight and has committed five."""
    for number in range(10):
        await client.send("T", b"%d" % number)
    await client.pull("T", 0, 0, group="G", max_msg_nums=8)
    broker.offsets.commit("G", "T", 0, 5)


def test_the_lag_of_a_group_is_told(tmp_path: Path) -> None:
    """Of a group that is offline, of one that has left a topic, of listed topics, and of one that is not there."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, broker = cluster.client(), cluster.broker
            await consumed(client, broker)

            async def stats(**header: str) -> ConsumeStats:
                return ConsumeStats.decode((await client.call(r.GetConsumeStats("G", **header))).body)

            found = (await stats()).offset_table
            first = found[MessageQueue("T", "broker-a", 0)]
            assert (first.broker_offset, first.consumer_offset, first.pull_offset) == (10, 5, 8)
            assert first.last_timestamp == broker.store.store_time_ms("T", 0, 4)
            other = found[MessageQueue("T", "broker-a", 3)]
            assert (other.broker_offset, other.consumer_offset, other.pull_offset, other.last_timestamp) == (0,) * 4
            await cluster.client().heartbeat(consumers={"G": {"Other": "*"}})
            assert not (await stats()).offset_table
            assert not (await stats(topic="T")).offset_table
            assert len((await stats(topic_list="T;Nothing")).offset_table) == 4
            assert not (await stats(topic="Nothing")).offset_table

    run(main())


def test_the_lag_of_all_groups_is_told(tmp_path: Path) -> None:
    """Sums over groups; ordered topics alone where that is asked."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, broker = cluster.client(), cluster.broker
            await consumed(client, broker)
            body = (await client.call(r.GetBrokerConsumeStats(False))).body
            found = ConsumeStatsList.decode(body)
            assert (found.total_diff, found.total_inflight_diff) == (5, 3)
            assert found.broker_addr == broker.address
            by_group = {name: stats for each in found.consume_stats_list for name, stats in each.items()}
            assert set(by_group) == set(broker.groups.table)
            assert len(by_group["G"]) == 1
            ordered = ConsumeStatsList.decode((await client.call(r.GetBrokerConsumeStats(True))).body)
            assert ordered.total_diff == 0

    run(main())


def test_the_times_of_what_a_group_has_read_are_told(tmp_path: Path) -> None:
    """A queue that is partly read, one that is empty, and a topic that is not there."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, broker = cluster.client(), cluster.broker
            await consumed(client, broker)
            answer = await client.call(r.QueryConsumeTimeSpan("T", "G"))
            spans = QueryConsumeTimeSpanBody.decode(answer.body).consume_time_span_set
            by_queue = {each.message_queue.queue_id: each for each in spans if each.message_queue is not None}
            assert len(by_queue) == 4
            store = broker.store
            first = by_queue[0]
            assert first.min_time_stamp == store.store_time_ms("T", 0, 0)
            assert first.max_time_stamp == store.store_time_ms("T", 0, 9)
            assert first.consume_time_stamp == store.store_time_ms("T", 0, 4)
            assert first.delay_time <= broker.now_ms() - store.store_time_ms("T", 0, 5)
            assert (first.min_time_stamp_str or "")[10] == "#"
            assert (by_queue[1].min_time_stamp, by_queue[1].delay_time) == (0, 0)
            assert await code_of(client.call(r.QueryConsumeTimeSpan("Nothing", "G"))) == 17

    run(main())
