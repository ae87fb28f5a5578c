"""Topics over real sockets: made, changed, refused, deleted with all that belongs to them, listed and measured."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmq_core.errors import BrokerError
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
)
from rmq_core.protocol.message import MessageQueue
from support.brokers import Client, Cluster, broker_cluster, run


async def code_of(call: Any) -> int:
    try:
        await call
    except BrokerError as error:
        assert error.remark
        return error.code
    return 0


def wanted(name: str = "Orders", **changes: Any) -> r.UpdateAndCreateTopic:
    fields = {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, "topic_filter_type": "SINGLE_TAG", **changes}
    return r.UpdateAndCreateTopic(name, default_topic="TBW102", **fields)


async def route_of(cluster: Cluster, topic: str) -> TopicRouteData:
    answer = await cluster.name_client().call(r.GetRouteinfoByTopic(topic))
    return TopicRouteData.decode(answer.body)


def test_a_topic_is_known_everywhere_once_it_is_made(tmp_path: Path) -> None:
    """Asks the broker, its file and the name server right after the answer; then again after a change."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.call(wanted(order=True, attributes="+message.type=FIFO", topic_sys_flag=1))
            answer = await client.call(r.GetTopicConfig("Orders"))
            config = TopicConfigAndQueueMapping.decode(answer.body)
            assert (config.read_queue_nums, config.order, config.topic_sys_flag) == (4, True, 1)
            assert config.attributes == {"message.type": "FIFO"}
            saved = orjson.loads((tmp_path / "broker-a" / "config" / "topics.json").read_bytes())
            assert saved["topicConfigTable"]["Orders"]["writeQueueNums"] == 4
            assert (await route_of(cluster, "Orders")).queue_datas[0].write_queue_nums == 4
            before = cluster.broker.topics.data_version
            await client.call(wanted(order=True, attributes="", topic_sys_flag=1))
            assert cluster.broker.topics.data_version == before  # nothing to change, nothing to register
            await client.call(wanted(write_queue_nums=9, read_queue_nums=9, attributes="-message.type"))
            assert (await route_of(cluster, "Orders")).queue_datas[0].read_queue_nums == 9
            assert cluster.broker.topics.table["Orders"].attributes == {}

    run(main())


def test_changes_at_one_time_all_reach_the_name_server(tmp_path: Path) -> None:
    """Many topics grow together, so that their registrations overlap; each must arrive, though a name server takes
    nothing new under a version that it has seen."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            names = [f"T{number}" for number in range(20)]
            for queues in (1, 3, 2):
                changes = (wanted(name, read_queue_nums=queues, write_queue_nums=queues) for name in names)
                await asyncio.gather(*(client.call(change) for change in changes))
                routes = [await route_of(cluster, name) for name in names]
                assert [each.queue_datas[0].read_queue_nums for each in routes] == [queues] * len(names)

    run(main())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (wanted("no good?"), 29),
        (wanted("x" * 128), 29),
        (wanted(""), 29),
        (wanted("TBW102"), 29),
        (wanted("rmq_sys_mine"), 29),
        (wanted("SCHEDULE_TOPIC_XXXX"), 29),
        (wanted(read_queue_nums=-1), 29),
        (wanted(write_queue_nums=1 << 20), 29),
        (wanted(perm=8), 29),
        (wanted(topic_filter_type="NO_TAG"), 29),
        (wanted(attributes="+no.such=1"), 1),
        (wanted(attributes="message.type=FIFO"), 1),
        (wanted(attributes="+message.type"), 1),
        (wanted(attributes="+message.type=ODD"), 1),
        (wanted(attributes="-message.type"), 1),
        (wanted(attributes="+message.type=FIFO,+message.type=DELAY"), 1),
        (wanted(attributes="+message.type=MIXED"), 29),
        (wanted(attributes="+reserve.time=soon"), 1),
    ],
)
def test_a_topic_that_may_not_be_is_refused(tmp_path: Path, request_: Any, code: int) -> None:
    """Bad names, names of the broker's own topics, impossible numbers, and attributes that are not there."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            before = dict(cluster.broker.topics.table)
            assert await code_of(cluster.client().call(request_)) == code
            assert cluster.broker.topics.table == before

    run(main())


def test_what_is_given_at_creation_stays(tmp_path: Path) -> None:
    """The type of the queues and the policy of cleaning cannot change, not even to nothing."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.call(wanted(attributes="+cleanup.policy=DELETE"))
            await client.call(wanted(attributes="+cleanup.policy=DELETE"))
            assert await code_of(client.call(wanted(attributes="+cleanup.policy=COMPACTION"))) == 1
            assert await code_of(client.call(wanted(attributes="-cleanup.policy"))) == 1
            assert cluster.broker.topics.table["Orders"].attributes == {"cleanup.policy": "DELETE"}

    run(main())


def test_a_list_of_topics_is_made_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """One of three has a bad name."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()

            async def make(*names: str) -> int:
                configs = tuple(TopicConfig(name, attributes={"+message.type": "FIFO"}) for name in names)
                body = CreateTopicListRequestBody(configs).encode()
                return await code_of(client.call(r.UpdateAndCreateTopicList(), body))

            assert await make("A", "B", "bad name") == 29
            assert "A" not in cluster.broker.topics.table
            assert await make("A", "B") == 0
            assert cluster.broker.topics.table["B"].attributes == {"message.type": "FIFO"}
            assert await code_of(client.call(r.UpdateAndCreateTopicList(), b"{not json")) == 1

    run(main())


def test_a_deleted_topic_leaves_nothing_behind(tmp_path: Path) -> None:
    """Messages, offsets, statistics, retry topics of POP, a held pull; then the name is used again."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, broker = cluster.client(), cluster.broker
            await client.call(wanted())
            await client.send("Orders", b"one")
            await client.messages("Orders", group="G")
            broker.offsets.commit("G", "Orders", 0, 1)
            await client.call(wanted("%RETRY%G_Orders"))
            held = cluster.client().channel
            pull = held.call(
                r.PullMessage(
                    "G", "Orders", 0, 1, 32, 2 | 4, 0, 20_000, 0, subscription="*", expression_type="TAG"
                ),
                timeout_ms=60_000,
            )
            waiting = asyncio.ensure_future(pull)
            while not broker.long_polls.count:
                await asyncio.sleep(0.001)
            await client.call(r.DeleteTopicInBroker("Orders"))
            with pytest.raises(BrokerError, match="not exist"):
                await waiting
            assert {"Orders", "%RETRY%G_Orders"}.isdisjoint(broker.topics.table)
            assert broker.offsets.query("G", "Orders", 0) == -1
            assert broker.stats.view("TOPIC_PUT_NUMS", "Orders") is None
            assert not (tmp_path / "broker-a" / "consumequeue" / "Orders").exists()
            assert await code_of(client.call(r.GetTopicStatsInfo("Orders"))) == 17
            await client.call(wanted())
            answer = await client.send("Orders", b"new")
            assert answer.header.queue_offset == 0
            assert [each.body for each in await client.messages("Orders")] == [b"new"]

    run(main())


def test_a_topic_of_the_broker_cannot_be_deleted(tmp_path: Path) -> None:
    """System topics and no name are refused; what is not there is not missed."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            for name in ("", " ", "TBW102", "rmq_sys_wheel_timer", "DefaultCluster", "broker-a"):
                assert await code_of(client.call(r.DeleteTopicInBroker(name))) == 29
            assert await code_of(client.call(r.DeleteTopicInBroker("Nothing"))) == 0
            assert await code_of(client.call(r.GetTopicConfig("Nothing"))) == 17

    run(main())


def test_deleting_a_topic_touches_nothing_else(tmp_path: Path) -> None:
    """Names that lead to directories elsewhere, empty ones that could be removed, and one that no path can have."""

    async def main() -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("Orders")
            for name in (str(elsewhere), "../../../elsewhere", "Orders/..", ".", "..", "/", "\0", "x" * 1000):
                assert await code_of(client.call(r.DeleteTopicInBroker(name))) == 0
            assert elsewhere.is_dir()
            assert [each.body for each in await client.messages("Orders")] == [b"hello"]

    run(main())


def test_all_topics_are_given_whole_or_in_pages(tmp_path: Path) -> None:
    """Pages cover the table once; a table that changed meanwhile starts again."""

    async def main() -> None:
        async with broker_cluster(tmp_path, split_metadata_size=7) as cluster:
            client = cluster.client()
            for number in range(5):
                await client.call(wanted(f"T{number}"))
            answer = await client.call(r.GetAllTopicConfig())
            whole = TopicConfigSerializeWrapper.decode(answer.body)
            assert answer.header.total_topic_num is None
            assert whole.topic_config_table == cluster.broker.topics.table
            found: list[str] = []
            version = None
            while True:
                request = r.GetAllTopicConfig(len(found), version, 100)
                page = await client.call(request)
                wrapper = TopicConfigSerializeWrapper.decode(page.body)
                assert wrapper.data_version is not None
                version = wrapper.data_version.encode().decode()
                assert len(wrapper.topic_config_table) <= 7
                found += wrapper.topic_config_table
                if len(found) >= page.header.total_topic_num:
                    break
            assert found == list(cluster.broker.topics.table)
            await client.call(wanted("T9"))
            again = await client.call(r.GetAllTopicConfig(7, version, 100))
            assert list(TopicConfigSerializeWrapper.decode(again.body).topic_config_table) == found[:7]

    run(main())


def test_the_ranges_of_all_queues_are_told(tmp_path: Path) -> None:
    """More queues than one step reads, and more to read than to write; one holds messages."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.call(wanted(read_queue_nums=300, write_queue_nums=2))
            for _ in range(3):
                await client.send("Orders", queue_id=1)
            stats = TopicStatsTable.decode((await client.call(r.GetTopicStatsInfo("Orders"))).body)
            assert len(stats.offset_table) == 300
            range_ = stats.offset_table[MessageQueue("Orders", "broker-a", 1)]
            assert (range_.min_offset, range_.max_offset) == (0, 3)
            assert range_.last_update_timestamp == cluster.broker.store.store_time_ms("Orders", 1, 2)
            empty = stats.offset_table[MessageQueue("Orders", "broker-a", 299)]
            assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)

    run(main())


def test_queues_of_unknown_topics_can_be_cleaned_up(tmp_path: Path) -> None:
    """A topic that only the store still knows goes; others stay, light queues among them."""

    async def main() -> None:
        async with broker_cluster(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as cluster:
            client, broker = cluster.client(), cluster.broker
            await client.send("Kept", properties={"INNER_MULTI_DISPATCH": "%LMQ%one"})
            await client.send("Lost")
            await broker.topics.delete("Lost")
            await client.call(r.CleanUnusedTopic())
            assert {topic for topic, _ in broker.store.queues.table} == {"Kept", "%LMQ%one"}
            assert len(await client.messages("Kept")) == 1

    run(main())


def test_system_topics_are_listed(tmp_path: Path) -> None:
    """The list has those that are not there, too."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client: Client = cluster.client()
            answer = await client.call(r.GetSystemTopicListFromBroker())
            names = set(TopicList.decode(answer.body).topic_list)
            expected = {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"}
            assert expected | {"DefaultCluster", "broker-a", "rmq_sys_wheel_timer"} <= names

    run(main())
