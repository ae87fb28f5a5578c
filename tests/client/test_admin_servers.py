"""Administration of connected clients, messages, brokers and name servers over real ones."""

from __future__ import annotations

import ast
import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_core.client import admin as admin_module
from rmq_core.client.admin import Admin
from rmq_core.client.admin_base import SomeBrokersFailedError
from rmq_core.client.admin_results import TrackStatus
from rmq_core.errors import BrokerError, NoRouteError
from rmq_core.namesrv import handlers as namesrv_handlers
from rmq_core.net.calls import Answer
from rmq_core.net.dispatch import handlers_in
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerStatusBody,
    MessageModel,
    ProcessQueueInfo,
    RegisterBrokerBody,
    SubscriptionData,
)
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import decode_record
from rmq_core.protocol.request import NoFields, Request
from support.admins import admin_of
from support.brokers import broker_cluster, run
from support.members import member

HOUR = timedelta(hours=1)


async def until_both_know(admin: Admin, topic: str) -> None:
    """The retry topic of a new group reaches the name server a moment after the first heartbeat."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(NoRouteError):
                if len((await admin.topic_route(topic)).data.queue_datas) == 2:
                    return
            await asyncio.sleep(0.01)


# Clients


def test_connected_clients_are_listed_once_however_many_brokers_they_use(tmp_path: Path) -> None:
    """One consumer on both brokers, one on the second only, and a producer on the first."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            for number, names in ((0, ("one",)), (1, ("one", "two"))):
                for name in names:
                    await member(cluster, number).heartbeat(
                        name, consumers={"billing": {"Orders": "paid || shipped"}}
                    )
            await member(cluster).heartbeat("sender", producers=("shop",))
            await until_both_know(admin, "%RETRY%billing")
            found = await admin.consumer_connections("billing")
            assert [each.client_id for each in found.members] == ["one", "two"]
            assert found.members[0].version_name == "V5_3_3"
            assert found.subscriptions["Orders"].tags == ("paid", "shipped")
            assert found.consume_type is ConsumeType.CONSUME_PASSIVELY
            only_first = await admin.consumer_connections("billing", broker="broker-a")
            assert [each.client_id for each in only_first.members] == ["one"]
            with pytest.raises(BrokerError) as nobody:
                await admin.consumer_connections("nobody")
            assert nobody.value.code == 206
            assert [each.client_id for each in await admin.producer_connections("shop", "Orders")] == ["sender"]
            assert await admin.producer_connections("nobody", "Orders") == ()
            (sender,) = (await admin.producers("broker-a"))["shop"]
            assert sender.last_seen_at is not None
            assert not sender.address.startswith("/")
            subscribed = await admin.subscription("billing", "Orders")
            assert subscribed is not None
            assert subscribed.expression == "paid || shipped"
            assert await admin.subscription("nobody", "Orders") is None
            (line,) = await admin.progress()
            assert (line.group, line.member_count, line.version) == ("billing", 2, "V5_3_3")

    run(main())


def test_a_member_shows_itself_from_inside_whichever_broker_it_is_connected_to(tmp_path: Path) -> None:
    """The member is known to the second broker only; the first one asked does not know it."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            client = member(cluster, 1)
            await client.heartbeat("one", consumers={"billing": {"Orders": "*"}})
            queue = MessageQueue("Orders", "broker-b", 0)
            info = ConsumerRunningInfo(
                {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
                (SubscriptionData("Orders", "*"),),
                {
                    queue: ProcessQueueInfo(
                        commit_offset=7, cached_msg_count=3, last_pull_timestamp=1_700_000_000_000
                    )
                },
                jstack="stacks",
            )
            client.answers[307] = Answer(NoFields(), info.encode())
            found = await admin.running_info("billing", "one", stacks=True)
            assert (await client.until_told(307)).ext["jstackEnable"] == "true"  # type: ignore[index]
            assert (found.client_id, found.stacks) == ("one", "stacks")
            assert found.queues[queue].committed == 7
            assert found.queues[queue].last_pulled_at == datetime.fromtimestamp(1_700_000_000, UTC)
            assert found.queues[queue].last_locked_at is None
            with pytest.raises(BrokerError, match="not online"):
                await admin.running_info("billing", "two")
            client.answers[221] = Answer(NoFields(), GetConsumerStatusBody({queue: 5}).encode())
            assert await admin.member_positions("billing", "Orders", client_id="one") == {"one": {queue: 5}}
            assert await admin.member_positions("nobody", "Orders") == {}

    run(main())


def test_a_member_is_handed_the_message_that_an_id_names(tmp_path: Path) -> None:
    """By the sender's id and by the offset id; the member gets that very record."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            client = member(cluster)
            await client.heartbeat("one", consumers={"billing": {"Orders": "*"}})
            result = ConsumeMessageDirectlyResult(consume_result=ConsumeResult.CR_LATER, spent_time_mills=5)
            client.answers[309] = Answer(NoFields(), result.encode())
            sent = await client.send("Orders", b"this one", properties={"UNIQ_KEY": "A" * 32})
            for msg_id, topic in (("A" * 32, "Orders"), (sent.header.msg_id, None)):
                found = await admin.consume_directly("billing", "one", msg_id, topic=topic)
                assert found.result is ConsumeResult.CR_LATER
                assert found.spent == timedelta(milliseconds=5)
            assert {decode_record(told.body).body for told in client.told if told.code == 309} == {b"this one"}

    run(main())


# Messages


def test_a_message_is_found_by_each_of_its_names(tmp_path: Path) -> None:
    """Sends to two brokers and looks by id, key, place and time; what does not exist is said so."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            before = datetime.now(UTC)
            ids = []
            for number in range(6):
                client = cluster.client(number % 2)
                properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number} all", "TAGS": f"t{number % 3}"}
                sent = await client.send("Orders", b"%d" % number, queue_id=1, properties=properties)
                ids.append(sent.header.msg_id)
            after = datetime.now(UTC) + timedelta(seconds=1)

            found = await admin.view_message(ids[3])
            assert (found.body, found.topic, found.queue) == (b"3", "Orders", MessageQueue("Orders", "broker-b", 1))
            by_sender = await admin.view_message(f"{3:032X}", topic="Orders")
            assert by_sender.offset_msg_id == found.offset_msg_id
            for missing in ({"msg_id": f"{9:032X}", "topic": "Orders"}, {"msg_id": ids[0][:-4] + "FFFF"}):
                with pytest.raises(BrokerError, match="there is no message") as nothing:
                    await admin.view_message(**missing)
                assert nothing.value.code == 22
            with pytest.raises(ValueError, match=r"topic: .* name the topic"):
                await admin.view_message(f"{3:032X}")

            assert [each.body for each in await admin.messages_by_key("Orders", "k4")] == [b"4"]
            every = await admin.messages_by_key("Orders", "all")
            assert {each.body for each in every} == {b"%d" % number for number in range(6)}
            assert [each.stored_time_ms for each in every] == sorted(each.stored_time_ms for each in every)
            assert len(await admin.messages_by_key("Orders", "all", limit=2)) == 2
            assert await admin.messages_by_key("Orders", "all", end=before - HOUR) == ()
            assert len(await admin.messages_by_key("Orders", "all", start=before - HOUR, end=after)) == 6
            assert await admin.messages_by_key("Orders", "nothing") == ()
            assert [each.body for each in await admin.messages_by_unique_key("Orders", f"{5:032X}")] == [b"5"]

            queue = MessageQueue("Orders", "broker-a", 1)
            assert (await admin.message_at(queue, 2)).body == b"4"
            with pytest.raises(BrokerError, match="there is no message 3 in"):
                await admin.message_at(queue, 3)

            every = await admin.messages_between("Orders", before - HOUR, after)
            assert {each.body for each in every} == {b"%d" % number for number in range(6)}
            tagged = await admin.messages_between("Orders", before - HOUR, after, tags="t1 || t2")
            assert {each.body for each in tagged} == {b"1", b"2", b"4", b"5"}
            some = await admin.messages_between("Orders", before - HOUR, after, limit=3)
            assert [each.offset_msg_id for each in some] == [each.offset_msg_id for each in every[:3]]
            assert await admin.messages_between("Orders", after, after + HOUR) == ()
            for start, end, match in ((after, before, "before end"), (datetime(2026, 1, 1), after, "start has no")):
                with pytest.raises(ValueError, match=match):
                    await admin.messages_between("Orders", start, end)

    run(main())


def test_messages_between_two_times_are_those_and_no_others(tmp_path: Path) -> None:
    """Cuts a queue of 100 messages at the times of two of them: the first belongs to it, the second does not."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            client = cluster.client()
            for number in range(100):
                await client.send("Orders", b"%d" % number)
            stored = [each.store_time_ms for each in await client.messages("Orders")]
            for low, high in ((stored[20], stored[70]), (stored[0], stored[-1]), (stored[40], stored[40] + 1)):
                found = await admin.messages_between(
                    "Orders",
                    datetime.fromtimestamp(low / 1000, UTC),
                    datetime.fromtimestamp(high / 1000, UTC) if high > low else datetime.now(UTC),
                )
                wanted = [number for number, time_ms in enumerate(stored) if low <= time_ms < high]
                assert [int(each.body) for each in found] == wanted

    run(main())


def test_a_message_is_tracked_through_every_group(tmp_path: Path) -> None:
    """One group for each thing that can have become of a message."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            client = member(cluster)
            await client.send("Orders", properties={"TAGS": "paid", "UNIQ_KEY": "B" * 32})
            for group, tags, more in (
                ("done", "*", {}),
                ("filtered", "shipped", {}),
                ("behind", "*", {}),
                ("pulling", "*", {"consume_type": ConsumeType.CONSUME_ACTIVELY}),
                ("everywhere", "*", {"message_model": MessageModel.BROADCASTING}),
            ):
                await member(cluster).heartbeat(group, consumers={group: {"Orders": tags}}, **more)
            await admin.create_group("away")
            for group in ("done", "filtered", "away"):
                await client.call(r.UpdateConsumerOffset(group, "Orders", 0, 1))
            message = await admin.view_message("B" * 32, topic="Orders")
            found = {each.group: each.status for each in await admin.message_track(message)}
            assert found == {
                "done": TrackStatus.CONSUMED,
                "filtered": TrackStatus.CONSUMED_BUT_FILTERED,
                "behind": TrackStatus.NOT_CONSUME_YET,
                "pulling": TrackStatus.PULL,
                "everywhere": TrackStatus.CONSUME_BROADCASTING,
                "away": TrackStatus.NOT_ONLINE,
            }

    run(main())


def test_entries_of_a_queue_show_what_a_groups_filter_lets_through(tmp_path: Path) -> None:
    """Three messages of which a member wants one."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            client = member(cluster)
            for tag in ("a", "b", "a"):
                await client.send("Orders", properties={"TAGS": tag})
            await client.heartbeat(consumers={"billing": {"Orders": "b"}})
            queue = MessageQueue("Orders", "broker-a", 0)
            found = await admin.queue_entries(queue, 0, group="billing")
            assert (found.start, found.end) == (0, 3)
            assert [each.is_wanted for each in found.entries] == [False, True, False]
            assert [each.queue_offset for each in found.entries] == [0, 1, 2]
            assert found.entries[1].log_offset == found.entries[0].log_offset + found.entries[0].size
            assert found.subscription is not None
            assert len((await admin.queue_entries(queue, 1, 1)).entries) == 1

    run(main())


def test_a_half_message_that_was_given_up_is_asked_about_again(tmp_path: Path) -> None:
    """Names a message that is no half message, and one that is no message: both are refused by the broker."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            sent = await cluster.client().send("Orders")
            with pytest.raises(BrokerError):
                await admin.resume_transaction_check(sent.header.msg_id)
            with pytest.raises(ValueError, match=r"msg_id: .* no offset message id"):
                await admin.resume_transaction_check("A" * 32)

    run(main())


# Brokers


def test_brokers_tell_what_they_do_and_take_other_settings(tmp_path: Path) -> None:
    """Looks at both, changes one and then all, and asks for a setting that nobody may change."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            info = await admin.cluster_info()
            assert info.clusters == {"DefaultCluster": ("broker-a", "broker-b")}
            assert info.brokers["broker-b"].master == cluster.apps[1].broker.address
            members = await admin.broker_members("broker-a", cluster="DefaultCluster")
            assert members.addresses == {0: cluster.broker.address}
            runtime = await admin.runtime_info("broker-a")
            assert runtime.version == "V5_3_3"
            assert runtime.started_at is not None
            assert len(runtime.put_tps) == len(runtime.transferred_tps) == 3
            assert (await admin.broker_config("broker-b"))["brokerName"] == "broker-b"
            await admin.update_broker_config({"maxMessageSize": 1000}, broker="broker-a")
            assert (await admin.broker_config("broker-a"))["maxMessageSize"] == "1000"
            assert (await admin.broker_config("broker-b"))["maxMessageSize"] != "1000"
            await admin.update_broker_config({"autoCreateTopicEnable": False})
            assert (await admin.broker_config("broker-b"))["autoCreateTopicEnable"] == "false"
            with pytest.raises(BrokerError) as refused:
                await admin.update_broker_config({"rocketmqHome": "/"})
            assert refused.value.code == 16
            with pytest.raises(ValueError, match="nothing to change"):
                await admin.update_broker_config({})
            with pytest.raises(TypeError, match="settings"):
                await admin.update_broker_config({"a": None})  # type: ignore[dict-item]

    run(main())


def test_counters_and_cleaning_and_what_only_apaches_brokers_keep(tmp_path: Path) -> None:
    """One call of each; what this broker does not have, it says."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 1)
            for _ in range(3):
                await cluster.client().send("Orders")
            found = await admin.stats("TOPIC_PUT_NUMS", "Orders")
            assert set(found) == {"broker-a"}
            assert found["broker-a"].day.sum >= 0
            assert await admin.stats("TOPIC_PUT_NUMS", "Nothing") == {}
            await admin.clean_expired_queues()
            await admin.delete_expired_log(broker="broker-a")
            status = await admin.replication_status("broker-a")
            assert (status.is_master, status.replicas) == (True, ())
            assert status.log_end > 0
            await admin.set_cold_read_limits({"billing": 1000})
            assert (await admin.cold_read_limits("broker-a"))["configTable"] == {"billing": 1000}
            await admin.remove_cold_read_limit("billing")
            assert (await admin.cold_read_limits("broker-a"))["configTable"] == {}
            await admin.set_read_ahead(False)
            await admin.reset_master_flush_offset("broker-a", 0)
            await admin.export_rocksdb_config("topics", broker="broker-a")
            with pytest.raises(ValueError, match="kinds"):
                await admin.export_rocksdb_config("nothing", broker="broker-a")
            assert (await admin.check_rocksdb_queues("broker-a")).check_status == 2
            for refused in (
                admin.epochs("broker-a"),
                admin.timer_checkpoint("broker-a"),
                admin.timer_counts("broker-a"),
            ):
                with pytest.raises(BrokerError):
                    await refused

    run(main())


def test_a_broker_that_is_away_is_named_in_the_error(tmp_path: Path) -> None:
    """The name server knows a broker at a port where nothing listens."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster, timeout_ms=2_000) as admin:
            gone = r.RegisterBroker("broker-b", "127.0.0.1:1", "DefaultCluster", 0, "")
            await cluster.name_client().call(gone, RegisterBrokerBody().encode())
            with pytest.raises(SomeBrokersFailedError, match=r"1 of 2 brokers failed \(broker-b: ") as caught:
                await admin.create_topic("Orders", 1)
            assert caught.value.failed["broker-b"].retriable

    run(main())


# Name servers


def test_values_are_kept_by_every_name_server(tmp_path: Path) -> None:
    """Stores through one administrator and looks at both name servers."""

    async def main() -> None:
        async with broker_cluster(tmp_path, names=2) as cluster, admin_of(cluster) as admin:
            assert len(await admin.name_servers()) == 2
            await admin.put_kv("N", "k", "v")
            assert [each.kv.get("N", "k") for each in cluster.name_servers] == ["v", "v"]
            assert await admin.kv("N", "k") == "v"
            assert await admin.kv_namespace("N") == {"k": "v"}
            await admin.delete_kv("N", "k")
            assert await admin.kv("N", "k") is None
            assert await admin.kv_namespace("Other") == {}
            with pytest.raises(ValueError, match="value must be"):
                await admin.put_kv("N", "k", "")
            configs = await admin.name_server_config()
            assert len(configs) == 2
            await admin.update_name_server_config({"orderMessageEnable": True})
            assert {each["orderMessageEnable"] for each in (await admin.name_server_config()).values()} == {"true"}

    run(main())


def test_write_permission_is_taken_from_a_broker_and_given_back(tmp_path: Path) -> None:
    """Counts the queues that can be written before, between and after."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            assert len((await admin.topic_route("Orders")).write_queues) == 4
            (wiped,) = (await admin.wipe_write_permission("broker-a")).values()
            assert wiped > 0
            assert {each.broker_name for each in (await admin.topic_route("Orders")).write_queues} == {"broker-b"}
            (added,) = (await admin.add_write_permission("broker-a")).values()
            assert added == wiped
            assert len((await admin.topic_route("Orders")).write_queues) == 4
            await admin.delete_topic_route("Orders", cluster="DefaultCluster")
            with pytest.raises(NoRouteError):
                await admin.topic_route("Orders")

    run(main())


# All of them


NOT_ADMINISTRATION = {
    # Between clients and brokers, between brokers, and at registration.
    *(10, 11, 34, 35, 36, 37, 38, 41, 42, 43, 45, 46, 103, 104, 217, 310, 320, 322, 324, 325, 361, 370, 400, 402),
    *(901, 904),
    # Asked by every client for itself: routes and clusters.
    *(105, 106),
    # Refused by this broker: logical queues.
    513,
    # Makes the group that it is asked about; settings of groups come from the whole table instead.
    352,
}


def test_every_request_of_administrators_that_is_served_has_a_method(tmp_path: Path) -> None:
    """Compares what broker and name server serve with what the families of Admin send."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            served = {*cluster.apps[0].dispatcher.handlers, *handlers_in(namesrv_handlers)}
            refused = {each.code for each in vars(r).values() if _is_request(each) and each.code >= 3001}
            sent = set()
            for path in Path(admin_module.__file__).parent.glob("admin_*.py"):
                for node in ast.walk(ast.parse(path.read_text())):
                    if (
                        isinstance(node, ast.Attribute)
                        and isinstance(node.value, ast.Name)
                        and node.value.id == "r"
                    ):
                        sent.add(getattr(r, node.attr).code)
            assert served - sent - refused - NOT_ADMINISTRATION == set()

    run(main())


def _is_request(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Request) and hasattr(value, "code")
