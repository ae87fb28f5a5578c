"""Membership over real sockets: heartbeats, notices, expiry, and who is told to be there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.notices import INTERVAL_MS, STEP, STEP_MS
from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.protocol import bodies
from rmq_core.protocol import requests as r
from rmq_core.protocol.command import Command, HeaderEncoding, decode_command, encode_command
from rmq_core.protocol.message import retry_topic
from support.brokers import Client, Cluster, broker_app, broker_cluster, run, subscription
from support.cluster import address_of, name_servers
from support.members import Member, member
from support.proxy import Proxy

NOTICE = 40


def heartbeat_of(client_id: str, groups: dict[str, list[str]], *, sub_version: int = 1) -> bytes:
    data = bodies.HeartbeatData(
        client_id,
        consumer_data_set=tuple(
            bodies.ConsumerData(
                group,
                subscription_data_set=tuple(subscription(topic, sub_version=sub_version) for topic in topics),
            )
            for group, topics in groups.items()
        ),
    )
    return data.encode()


async def read_frame(reader: asyncio.StreamReader) -> Command:
    prefix = await reader.readexactly(4)
    return decode_command(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))


async def ids_of(client: Client, group: str) -> list[str]:
    answer = await client.call(r.GetConsumerListByGroup(group))
    return list(bodies.GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list)


async def refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(BrokerError) as raised:
        await call
    return raised.value.code, raised.value.remark


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_a_new_groups_heartbeat_and_pull_in_one_write_find_each_other(
    tmp_path: Path, encoding: HeaderEncoding
) -> None:
    """The name server takes everything and answers nothing; 30 new groups send all they have in one write each."""

    async def main() -> None:
        async with name_servers(tmp_path) as (server,), Proxy(address_of(server)) as proxy:
            app = broker_app(tmp_path, proxy.address)
            await app.start()
            try:
                cluster = Cluster([app], [])
                await cluster.client().send("Orders")
                proxy.stall()
                for number in range(30):
                    answers = await in_one_write(app.broker.address, f"CG-{number}", encoding)
                    assert [answer.code for answer in answers] == [0, 0, 0]
                    assert bodies.GetConsumerListByGroupResponseBody.decode(answers[1].body).consumer_id_list
                await cluster.close_clients()
            finally:
                proxy.resume()
                await app.close(drain_ms=200)

    run(main())


async def in_one_write(address: str, group: str, encoding: HeaderEncoding) -> list[Command]:
    """The answers to a heartbeat, a question for the members, and a pull, sent together."""
    pull = r.PullMessage(group, "Orders", 0, 0, 32, 0, 0, 0, 1)
    requests: list[tuple[Any, bytes]] = [
        (r.HeartBeat(), heartbeat_of("client-1", {group: ["Orders"]})),
        (r.GetConsumerListByGroup(group), b""),
        (pull, b""),
    ]
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    frames = [
        encode_command(Command(request.code, opaque, ext=request.to_ext(), body=body, encoding=encoding))
        for opaque, (request, body) in enumerate(requests)
    ]
    writer.write(b"".join(frames))
    answers: list[Command] = []
    while len(answers) < len(frames):
        command = await read_frame(reader)
        if command.is_response:
            answers.append(command)
    writer.close()
    assert [answer.opaque for answer in answers] == [0, 1, 2]
    assert {answer.encoding for answer in answers} == {encoding}
    return answers


def test_the_notice_of_a_change_comes_behind_the_answer_that_made_it(tmp_path: Path) -> None:
    """Reads the bytes of one connection as they come."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            host, _, port = cluster.broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode_command(Command(34, 7, body=heartbeat_of("one", {"CG": ["Orders"]}))))
            answer, notice = await read_frame(reader), await read_frame(reader)
            assert (answer.opaque, answer.code, answer.is_response) == (7, 0, True)
            assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
            assert (notice.code, notice.ext, notice.is_oneway) == (NOTICE, {"consumerGroup": "CG"}, True)
            assert (notice.language.name, notice.version) == ("JAVA", 479)
            writer.close()

    run(main())


async def settled(clock: ManualClock, *members: Member) -> list[int]:
    """How many notices each member has had, once a round has had its time."""
    await clock.advance(INTERVAL_MS)
    await clock.advance(INTERVAL_MS)
    return [each.count(NOTICE) for each in members]


def test_members_are_told_of_changes_and_of_nothing_else(tmp_path: Path) -> None:
    """Joining, another topic, a newer version of the same, a topic less, leaving, a connection that breaks."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            one, two, three = (member(cluster) for _ in range(3))
            await one.heartbeat("one", consumers={"CG": {"Orders": "*"}})
            assert await settled(clock, one) == [1]
            await two.heartbeat("two", consumers={"CG": {"Orders": "*"}})
            assert await settled(clock, one, two) == [2, 1]
            await two.heartbeat("two", consumers={"CG": {"Orders": "a"}}, sub_version=2)
            await one.heartbeat("one", consumers={"CG": {"Orders": "*"}}, sub_version=1)
            assert await settled(clock, one, two) == [2, 1]
            group = cluster.broker.clients.consumer_group("CG")
            assert group is not None
            assert group.subscriptions["Orders"].sub_string == "a"
            await one.heartbeat("one", consumers={"CG": {"Orders": "*", "Events": "*"}})
            assert await settled(clock, one, two) == [3, 2]
            await one.heartbeat("one", consumers={"CG": {"Events": "*"}})
            assert await settled(clock, one, two) == [4, 3]
            assert list(group.subscriptions) == ["Events"]
            await three.heartbeat("three", consumers={"CG": {"Events": "*"}})
            assert await settled(clock, one, two, three) == [5, 4, 1]
            await three.call(r.UnregisterClient("three", consumer_group="CG"))
            assert await settled(clock, one, two, three) == [6, 5, 1]
            await two.channel.close()
            assert await settled(clock, one) == [7]
            assert await ids_of(one, "CG") == ["one"]

    run(main())


@pytest.mark.parametrize("off", ["broker", "group", "broadcasting"])
def test_nobody_is_told_where_that_is_switched_off(tmp_path: Path, off: str) -> None:
    """The broker's switch, the group's, and a group that broadcasts: two members come and one unregisters."""

    async def main() -> None:
        clock = ManualClock()
        is_on = off != "broker"
        async with broker_cluster(tmp_path, clock=clock, notify_consumer_ids_changed_enable=is_on) as cluster:
            one, two = member(cluster), member(cluster)
            config = bodies.SubscriptionGroupConfig("CG", notify_consumer_ids_changed_enable=off != "group")
            await cluster.broker.groups.update(config)
            model = bodies.MessageModel.BROADCASTING if off == "broadcasting" else bodies.MessageModel.CLUSTERING
            for number, each in enumerate((one, two)):
                await each.heartbeat(f"c{number}", consumers={"CG": {"Orders": "*"}}, message_model=model)
            await two.call(r.UnregisterClient("c1", consumer_group="CG"))
            assert await settled(clock, one, two) == [0, 0]
            # A connection that breaks does not ask for the group's switch.
            await two.heartbeat("c1", consumers={"CG": {"Orders": "*"}}, message_model=model)
            await two.channel.close()
            assert await settled(clock, one) == [1 if off == "group" else 0]

    run(main())


def test_many_members_that_join_are_told_in_a_few_rounds(tmp_path: Path) -> None:
    """60 members come in the course of a second; each hears of the last one, and of at most six changes."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            members = [member(cluster) for _ in range(60)]
            for start in range(0, 60, 3):
                for number in range(start, start + 3):
                    await members[number].heartbeat(f"c{number}", consumers={"CG": {"Orders": "*"}})
                await clock.advance(50)
            before = [each.count(NOTICE) for each in members]
            assert max(before) <= 6
            counts = await settled(clock, *members)
            assert max(counts) <= 7
            assert min(counts) >= 1
            assert len(await ids_of(members[0], "CG")) == 60

    run(main())


def test_a_large_group_is_told_piece_by_piece(tmp_path: Path) -> None:
    """A change to a group of two and a half pieces, and one more while it is told: two rounds."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            members = [member(cluster) for _ in range(STEP * 5 // 2)]
            for number, each in enumerate(members):
                await each.heartbeat(f"c{number}", consumers={"CG": {"Orders": "*"}})
            await clock.advance(5 * INTERVAL_MS)
            for each in members:
                each.told.clear()

            def told() -> int:
                return sum(each.count(NOTICE) for each in members)

            await members[0].heartbeat("c0", consumers={"CG": {"Events": "*"}})
            await clock.settle()
            assert told() == STEP
            await members[0].heartbeat("c0", consumers={"CG": {"Orders": "*"}})
            await clock.advance(STEP_MS)
            assert told() == 2 * STEP
            await clock.advance(STEP_MS)
            assert told() == len(members)
            await clock.advance(INTERVAL_MS - 1)
            assert told() == len(members)
            await clock.advance(1)
            assert told() == len(members) + STEP
            await clock.advance(2 * STEP_MS)
            assert [each.count(NOTICE) for each in members] == [2] * len(members)

    run(main())


def test_changes_are_gathered_where_the_settings_say_so(tmp_path: Path) -> None:
    """With realTimeNotifyConsumerChange=false the first change waits for the others."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, real_time_notify_consumer_change=False) as cluster:
            one, two = member(cluster), member(cluster)
            await one.heartbeat("one", consumers={"CG": {"Orders": "*"}})
            await clock.advance(14_000)
            await two.heartbeat("two", consumers={"CG": {"Orders": "*"}})
            assert one.count(NOTICE) == 0
            await clock.advance(1_000)
            assert [one.count(NOTICE), two.count(NOTICE)] == [1, 1]

    run(main())


def test_a_silent_client_is_dropped_without_a_word_to_the_others(tmp_path: Path) -> None:
    """One member of two stops its heartbeats, but not its other requests: it is closed, the other not told."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            silent, alive = member(cluster), member(cluster)
            await silent.heartbeat("silent", consumers={"CG": {"Orders": "*"}}, producers=("PG",))
            await alive.heartbeat("alive", consumers={"CG": {"Orders": "*"}})
            (before,) = await settled(clock, alive)
            for _ in range(13):
                await clock.advance(10_000)
                await alive.heartbeat("alive", consumers={"CG": {"Orders": "*"}})
                if silent.channel.is_connected:
                    await silent.call(r.GetMaxOffset("Orders", 0))
            await clock.settle()
            assert not silent.channel.is_connected
            assert await ids_of(alive, "CG") == ["alive"]
            assert alive.count(NOTICE) == before
            clients = cluster.broker.clients
            assert clients.producer_by_client_id("silent") is None
            assert clients.producer_group("PG") == {}

    run(main())


def test_a_group_whose_last_member_goes_is_gone(tmp_path: Path) -> None:
    """By unregistering and by a broken connection; what it subscribed to is forgotten with it."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, other = cluster.client(), cluster.client()
            for leave in ("unregister", "close"):
                await client.heartbeat("one", consumers={"CG": {"Orders": "*"}})
                assert await ids_of(other, "CG") == ["one"]
                if leave == "unregister":
                    await client.call(r.UnregisterClient("one", consumer_group="CG"))
                else:
                    await client.channel.close()
                while cluster.broker.clients.consumer_group("CG") is not None:
                    await asyncio.sleep(0)
                assert await refusal(ids_of(other, "CG")) == (1, "no consumer for this group, CG")
                code, remark = await refusal(other.call(r.GetConsumerConnectionList("CG")))
                assert (code, remark) == (206, "the consumer group[CG] not online")

    run(main())


def test_members_are_listed_once_however_many_connections_they_have(tmp_path: Path) -> None:
    """One client id on two connections and another one; the list follows each coming and going."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            one, again, two = (cluster.client() for _ in range(3))
            for client, name in ((one, "one"), (again, "one"), (two, "two")):
                await client.heartbeat(name, consumers={"CG": {"Orders": "*"}})
            assert await ids_of(one, "CG") == ["one", "two"]
            await one.call(r.UnregisterClient("one", consumer_group="CG"))
            assert sorted(await ids_of(two, "CG")) == ["one", "two"]
            await again.call(r.UnregisterClient("one", consumer_group="CG"))
            assert await ids_of(two, "CG") == ["two"]
            await two.heartbeat("renamed", consumers={"CG": {"Orders": "*"}})
            assert await ids_of(two, "CG") == ["renamed"]

    run(main())


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_a_long_list_of_members_is_one_answer_among_others(tmp_path: Path, encoding: HeaderEncoding) -> None:
    """Its bytes are shared by all who ask; asked for twice and with another request behind it, in one write."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            names = [f"{number}".rjust(2000, "c") for number in range(4)]
            for name in names:
                await cluster.client().heartbeat(name, consumers={"CG": {"Orders": "*"}})
            host, _, port = cluster.broker.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            ask, other = r.GetConsumerListByGroup("CG"), r.GetMaxOffset("Orders", 0)
            frames = [
                encode_command(Command(request.code, opaque, ext=request.to_ext(), encoding=encoding))
                for opaque, request in enumerate((ask, other, ask))
            ]
            writer.write(b"".join(frames))
            answers = [await read_frame(reader) for _ in frames]
            assert [(each.opaque, each.code, each.encoding) for each in answers] == [
                (opaque, 0, encoding) for opaque in range(3)
            ]
            for answer in (answers[0], answers[2]):
                listed = bodies.GetConsumerListByGroupResponseBody.decode(answer.body)
                assert list(listed.consumer_id_list) == names
            assert answers[1].ext == {"offset": "0"}
            writer.close()

    run(main())


async def until_topic(cluster: Cluster, name: str, **fields: Any) -> bodies.TopicConfig:
    while True:
        config = cluster.broker.topics.get(name)
        if config is not None and all(getattr(config, field) == value for field, value in fields.items()):
            return config
        await asyncio.sleep(0.001)


def test_a_groups_retry_topic_follows_its_settings(tmp_path: Path) -> None:
    """Made by the first heartbeat, enlarged with retryQueueNums, ordered as the topics are, never made smaller."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client, topics, groups = cluster.client(), cluster.broker.topics, cluster.broker.groups
            await topics.create(bodies.TopicConfig("Ordered", 4, 4, order=True))
            await client.heartbeat(consumers={"CG": {"Orders": "*"}})
            config = await until_topic(cluster, retry_topic("CG"))
            assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (1, 1, 6, False)
            own = groups.find("CG")
            assert own is not None
            await groups.update(replace(own, retry_queue_nums=3))
            await client.heartbeat(consumers={"CG": {"Ordered": "*"}})
            config = await until_topic(cluster, retry_topic("CG"), read_queue_nums=3, order=True)
            assert config.write_queue_nums == 3
            await groups.update(replace(own, retry_queue_nums=1))
            await client.heartbeat(consumers={"CG": {"Orders": "*"}})
            config = await until_topic(cluster, retry_topic("CG"), order=False)
            assert config.read_queue_nums == 3
            await client.heartbeat(consumers={"CG-unit": {"Orders": "*"}}, unit_mode=True)
            assert (await until_topic(cluster, retry_topic("CG-unit"))).topic_sys_flag == 2

    run(main())


def test_a_group_that_may_not_be_created_is_skipped(tmp_path: Path) -> None:
    """One heartbeat with a known group, an unknown one and a producer: answered 0, the rest applied."""

    async def main() -> None:
        async with broker_cluster(tmp_path, auto_create_subscription_group=False) as cluster:
            client = cluster.client()
            await cluster.broker.groups.update(bodies.SubscriptionGroupConfig("known"))
            groups = {"unknown": {"Orders": "*"}, "known": {"Orders": "*"}}
            answer = await client.heartbeat("one", consumers=groups, producers=("PG",))
            assert answer.code == 0
            assert await ids_of(client, "known") == ["one"]
            assert (await refusal(ids_of(client, "unknown")))[0] == 1
            assert len(cluster.broker.clients.producer_group("PG")) == 1
            assert cluster.broker.groups.find("unknown") is None

    run(main())


def test_pull_consumers_can_be_rejected(tmp_path: Path) -> None:
    """With rejectPullConsumerEnable an active consumer does not become a member, a push consumer does."""

    async def main() -> None:
        async with broker_cluster(tmp_path, reject_pull_consumer_enable=True) as cluster:
            client = cluster.client()
            active = bodies.ConsumeType.CONSUME_ACTIVELY
            await client.heartbeat("one", consumers={"pull": {"Orders": "*"}}, consume_type=active)
            await client.heartbeat("one", consumers={"push": {"Orders": "*"}})
            assert (await refusal(ids_of(client, "pull")))[0] == 1
            assert await ids_of(client, "push") == ["one"]

    run(main())


def test_heartbeats_without_subscriptions_keep_those_that_are_known(tmp_path: Path) -> None:
    """A 5.x client sends full and short ones, then others; a broker that knows nothing asks for a full one."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()

            async def beat(fingerprint: int, *, without: bool, topics: tuple[str, ...] = ("Orders",)) -> bool:
                subscriptions = () if without else tuple(subscription(topic) for topic in topics)
                data = bodies.HeartbeatData(
                    "one",
                    (),
                    (bodies.ConsumerData("CG", subscription_data_set=subscriptions),),
                    fingerprint,
                    without,
                )
                answer = await client.call(r.HeartBeat(), data.encode())
                assert answer.header.is_support_heart_beat_v2
                return bool(answer.header.is_sub_change)

            def topics() -> list[str]:
                group = cluster.broker.clients.consumer_group("CG")
                assert group is not None
                return sorted(group.subscriptions)

            assert await beat(77, without=True)
            assert await beat(77, without=True)
            assert topics() == []
            assert not await beat(77, without=False)
            assert not await beat(77, without=True)
            assert topics() == ["Orders"]
            assert await beat(78, without=False, topics=("Orders", "Events"))
            assert await beat(79, without=True)
            assert not await beat(78, without=True)
            assert topics() == ["Events", "Orders"]
            assert await beat(0, without=False)
            assert topics() == ["Orders"]

    run(main())


def test_who_is_connected_is_told_as_apache_tells_it(tmp_path: Path) -> None:
    """203, 204 and 328, with two producers and one consumer; unknown groups have their codes."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            client, other = cluster.client(), cluster.client()
            await client.heartbeat(
                "one",
                producers=("PG", "CLIENT_INNER_PRODUCER"),
                consumers={"CG": {"Orders": "a || b"}},
                consume_from_where=bodies.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )
            await other.heartbeat("two", producers=("PG",))
            answer = await client.call(r.GetConsumerConnectionList("CG"))
            consumers = bodies.ConsumerConnection.decode(answer.body)
            (connection,) = consumers.connection_set
            assert (connection.client_id, connection.language, connection.version) == ("one", "PYTHON", 479)
            assert consumers.consume_type is bodies.ConsumeType.CONSUME_PASSIVELY
            assert consumers.message_model is bodies.MessageModel.CLUSTERING
            assert consumers.consume_from_where is bodies.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            assert consumers.subscription_table == {"Orders": subscription("Orders", "a || b")}
            answer = await client.call(r.GetProducerConnectionList("PG"))
            producers = bodies.ProducerConnection.decode(answer.body)
            assert [each.client_id for each in producers.connection_set] == ["one", "two"]
            assert producers.connection_set[0].client_addr == connection.client_addr
            answer = await client.call(r.GetAllProducerInfo())
            table = bodies.ProducerTableInfo.decode(answer.body).data
            assert sorted(table) == ["CLIENT_INNER_PRODUCER", "PG"]
            info = table["PG"][0]
            assert info.remote_ip == f"/{connection.client_addr}"
            assert info.last_update_timestamp == clock.now_ms()
            code, remark = await refusal(client.call(r.GetProducerConnectionList("nobody")))
            assert (code, remark) == (1, "the producer group[nobody] not exist")
            await client.call(r.UnregisterClient("one", producer_group="PG"))
            answer = await client.call(r.GetProducerConnectionList("PG"))
            producers = bodies.ProducerConnection.decode(answer.body)
            assert [each.client_id for each in producers.connection_set] == ["two"]

    run(main())


def test_checks_go_to_the_live_producers_in_turn(tmp_path: Path) -> None:
    """Three producers of a group, one of which goes; a client that comes back is found on its new connection."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            clients = [cluster.client() for _ in range(3)]
            for number, client in enumerate(clients):
                await client.heartbeat(f"p{number}", producers=("PG",))
            table = cluster.broker.clients
            picked = [table.pick_producer("PG") for _ in range(6)]
            assert picked[:3] == picked[3:]
            assert set(picked) == set(table.producer_group("PG"))
            first = table.producer_by_client_id("p0")
            assert first is not None
            await clients[0].channel.close()
            while first.is_open:
                await asyncio.sleep(0)
            assert first not in {table.pick_producer("PG") for _ in range(6)}
            assert table.pick_producer("nobody") is None
            again = cluster.client()
            await again.heartbeat("p0", producers=("PG",))
            found = table.producer_by_client_id("p0")
            assert found is not None
            assert found is not first
            assert found.is_open
            # A client that calls itself something else on the same connection.
            await again.heartbeat("renamed", producers=("PG",))
            assert table.producer_by_client_id("p0") is None
            assert table.producer_by_client_id("renamed") is found
            await again.call(r.UnregisterClient("renamed", producer_group="PG"))
            assert table.producer_by_client_id("renamed") is None

    run(main())


def test_who_consumes_what_is_known_from_heartbeats_offsets_and_pulls(tmp_path: Path) -> None:
    """300, 343 and 345: online, offline with offsets, and a consumer that only ever pulls, until it stops."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock, subscription_expired_timeout=15_000) as cluster:
            client = cluster.client()
            await client.send("Orders")
            await client.heartbeat("one", consumers={"online": {"Orders": "a"}})
            cluster.broker.groups.find_or_begin("offline")
            await client.call(r.UpdateConsumerOffset("offline", "Orders", 0, 1))
            await client.pull("Orders", group="puller", subscription="x || y")

            async def subscribed(group: str) -> bodies.SubscriptionData | None:
                answer = await client.call(r.QuerySubscriptionByConsumer(group, "Orders"))
                body = bodies.QuerySubscriptionResponseBody.decode(answer.body)
                assert (body.group, body.topic) == (group, "Orders")
                return body.subscription_data

            answer = await client.call(r.QueryTopicConsumeByWho("Orders"))
            assert bodies.GroupList.decode(answer.body).group_list == ("online", "offline")
            answer = await client.call(r.QueryTopicsByConsumer("offline"))
            topics = bodies.TopicList.decode(answer.body)
            assert (topics.topic_list, topics.broker_addr) == (("Orders",), cluster.broker.address)
            assert await subscribed("offline") is None
            assert await subscribed("online") == subscription("Orders", "a")
            inferred = await subscribed("puller")
            assert inferred is not None
            assert (inferred.tags_set, inferred.sub_version) == (("x", "y"), clock.now_ms())
            await clock.advance(30_000)
            assert await subscribed("puller") is None

    run(main())


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"clientID":"x","consumerDataSet":5}', b'{"clientID":1e999']
)
def test_a_heartbeat_that_is_none_is_refused_and_the_connection_goes_on(tmp_path: Path, body: bytes) -> None:
    """Not JSON, of another shape, without a client id."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            code, remark = await refusal(client.call(r.HeartBeat(), body))
            assert code == 1
            assert remark
            assert (await client.heartbeat("one", consumers={"CG": {"Orders": "*"}})).code == 0

    run(main())
