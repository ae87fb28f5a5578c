"""Administration of topics over real brokers and name servers."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import rmq_core
import rmq_core.aio
from rmq_core.client.admin import Admin
from rmq_core.client.admin_base import SomeBrokersFailedError
from rmq_core.client.admin_results import TopicSettings
from rmq_core.errors import BrokerError, ClientClosedError, ConnectError, NoRouteError
from rmq_core.protocol.codes import Permission
from rmq_core.protocol.message import MessageQueue
from support.admins import admin_of
from support.brokers import broker_cluster, run
from support.cluster import address_of


def test_a_topic_is_made_on_every_master_and_gone_from_all_of_them(tmp_path: Path) -> None:
    """Creates on two brokers with two name servers, looks at each broker's table, and deletes."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 6, attributes={"message.type": "FIFO"})
            assert [app.broker.topics.table["Orders"].write_queue_nums for app in cluster.apps] == [6, 6]
            assert "Orders" in await admin.topics()
            route = await admin.topic_route("Orders")
            assert len(route.write_queues) == 12
            assert route.write_queues[0] == MessageQueue("Orders", "broker-a", 0)
            assert await admin.topic_clusters("Orders") == ("DefaultCluster",)
            settings = await admin.topic_settings("Orders")
            assert settings["broker-b"] == TopicSettings(
                name="Orders", read_queues=6, write_queues=6, attributes={"message.type": "FIFO"}
            )
            await admin.delete_topic("Orders")
            assert all("Orders" not in app.broker.topics.table for app in cluster.apps)
            for each in cluster.name_servers:
                async with Admin(name_server=address_of(each)) as one:
                    assert "Orders" not in await one.topics()
            with pytest.raises(NoRouteError, match="Orders"):
                await admin.delete_topic("Orders")

    run(main())


def test_a_named_broker_is_the_only_one_that_changes(tmp_path: Path) -> None:
    """Names a broker by name and by address, and looks for traces on the other one."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("A", broker="broker-a")
            await admin.create_topic("B", broker=cluster.apps[1].broker.address)
            assert "A" not in cluster.apps[1].broker.topics.table
            assert "B" not in cluster.apps[0].broker.topics.table
            assert list(await admin.topic_settings("A")) == ["broker-a"]
            with pytest.raises(NoRouteError, match="no broker broker-x; there are broker-a, broker-b"):
                await admin.create_topic("C", broker="broker-x")
            with pytest.raises(NoRouteError, match="no cluster Other; there are DefaultCluster"):
                await admin.create_topic("C", cluster="Other")

    run(main())


def test_with_several_clusters_a_call_must_say_which(tmp_path: Path) -> None:
    """Two brokers of two clusters: creating without a name would touch both."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            other = cluster.apps[1].broker
            other.settings.broker_cluster_name = "Second"
            await other.registration.register_all()
            info = await admin.cluster_info()
            assert set(info.clusters) == {"DefaultCluster", "Second"}
            with pytest.raises(ValueError, match="cluster: there are several, name one of DefaultCluster, Second"):
                await admin.create_topic("Orders")
            await admin.create_topic("Orders", cluster="Second")
            assert "Orders" not in cluster.broker.topics.table
            assert "Orders" in await admin.topics(cluster="Second")

    run(main())


def test_wrong_arguments_raise_before_anything_is_sent() -> None:
    """Nothing listens at the name server: a call that got that far would raise ConnectError."""

    async def main() -> None:
        async with Admin(name_server="127.0.0.1:1") as admin:
            for name, queues, match in (
                ("", 8, "topic name is empty"),
                ("a b", 8, "characters other"),
                ("Orders", -1, "read_queues must be 0"),
                ("Orders", 1 << 20, "read_queues"),
            ):
                with pytest.raises(ValueError, match=match):
                    await admin.create_topic(name, queues)
            with pytest.raises(TypeError, match="topic must be str, not int"):
                await admin.create_topic(5)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="attributes"):
                await admin.create_topic("Orders", attributes={"a=b": "c"})
            with pytest.raises(ValueError, match="kind must be one of"):
                await admin.unit_topics("nothing")  # type: ignore[arg-type]
            with pytest.raises(ConnectError):
                await admin.create_topic("Orders")
        with pytest.raises(ClientClosedError):
            await admin.topics()
        for make in (Admin, rmq_core.Admin):
            with pytest.raises(TypeError, match="unknown argument 'nameserver'"):
                make(nameserver="127.0.0.1:1")  # type: ignore[call-arg]
            with pytest.raises(ValueError, match="timeout_ms"):
                make(timeout_ms=0)

    run(main())


def test_a_failure_on_one_broker_does_not_stop_the_others(tmp_path: Path) -> None:
    """Gives one of two brokers the topic with an attribute that may not change: it refuses, the other creates."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", attributes={"cleanup.policy": "DELETE"}, broker="broker-a")
            with pytest.raises(SomeBrokersFailedError) as caught:
                await admin.create_topic("Orders", attributes={"cleanup.policy": "COMPACTION"})
            assert set(caught.value.failed) == {"broker-a"}
            assert set(caught.value.done) == {"broker-b"}
            assert "broker-a: response code 1: attempt to update" in str(caught.value)
            assert "Orders" in cluster.apps[1].broker.topics.table
            with pytest.raises(BrokerError) as same:
                await admin.create_topic("SCHEDULE_TOPIC_XXXX")
            assert same.value.code == 29

    run(main())


def test_permission_changes_and_everything_else_stays(tmp_path: Path) -> None:
    """Takes the permission to write from a topic with unusual settings."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            await admin.create_topic(
                "Orders", read_queues=5, write_queues=3, multi_tag=True, attributes={"message.type": "DELAY"}
            )
            await admin.set_topic_permission("Orders", Permission.READ)
            found = (await admin.topic_settings("Orders"))["broker-a"]
            assert found == TopicSettings(
                name="Orders",
                read_queues=5,
                write_queues=3,
                permission=Permission.READ,
                is_multi_tag=True,
                attributes={"message.type": "DELAY"},
            )
            await admin.create_topic("Orders", 5, attributes={"message.type": None})
            assert (await admin.topic_settings("Orders"))["broker-a"].attributes == {}
            with pytest.raises(BrokerError) as missing:
                await admin.topic_settings("Nothing", broker="broker-a")
            assert missing.value.code == 17

    run(main())


def test_many_topics_are_made_at_once_and_listed_in_pages(tmp_path: Path) -> None:
    """More topics than one page of the broker's table holds; none may be missing, and none be made twice."""

    async def main() -> None:
        async with broker_cluster(tmp_path, split_metadata_size=7) as cluster, admin_of(cluster) as admin:
            wanted = [TopicSettings(name=f"T{number:02}", read_queues=2, write_queues=2) for number in range(40)]
            await admin.create_topics(wanted)
            found = await admin.all_topic_settings("broker-a")
            assert set(found) == set(cluster.broker.topics.table)
            assert [found[each.name] for each in wanted] == wanted
            bad = [TopicSettings(name="Fine"), TopicSettings(name="SCHEDULE_TOPIC_XXXX")]
            with pytest.raises(BrokerError):
                await admin.create_topics(bad)
            assert "Fine" not in cluster.broker.topics.table

    run(main())


def test_lists_of_topics_leave_out_what_belongs_to_rocketmq(tmp_path: Path) -> None:
    """Makes retry and dead-letter topics beside an ordinary one, and asks for all lists there are."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster, admin_of(cluster) as admin:
            for name in ("Orders", "%RETRY%g", "%DLQ%g"):
                await admin.create_topic(name, 1)
            await admin.create_topic("Unit", 1, unit=True)
            assert await admin.topics() == ("Orders", "Unit")
            everything = await admin.topics(internal=True)
            assert {"Orders", "%RETRY%g", "%DLQ%g", "TBW102", "broker-a"} <= set(everything)
            assert {"DefaultCluster", "broker-a"} <= set(await admin.system_topics())
            assert "SCHEDULE_TOPIC_XXXX" in await admin.system_topics(broker="broker-a")
            assert await admin.unit_topics() == ("Unit",)
            assert await admin.unit_topics("subscribed") == ()
            assert await admin.unit_topics("subscribed_from_other") == ()

    run(main())


def test_a_namespace_shows_its_own_topics_under_bare_names(tmp_path: Path) -> None:
    """The same topic in two namespaces and in none: each administrator sees and deletes one of them."""

    async def main() -> None:
        async with (
            broker_cluster(tmp_path) as cluster,
            admin_of(cluster) as admin,
            admin_of(cluster, namespace="red") as red,
            admin_of(cluster, namespace="blue") as blue,
        ):
            for each, queues in ((admin, 1), (red, 2), (blue, 3)):
                await each.create_topic("Orders", queues)
            assert set(await admin.topics()) == {"Orders", "red%Orders", "blue%Orders"}
            assert await red.topics() == ("Orders",)
            assert (await red.topic_settings("Orders"))["broker-a"].read_queues == 2
            assert set(await red.all_topic_settings("broker-a")) >= {"Orders"}
            assert set((await red.topic_status("Orders")).queues) == {
                MessageQueue("Orders", "broker-a", 0),
                MessageQueue("Orders", "broker-a", 1),
            }
            await red.delete_topic("Orders")
            assert set(await admin.topics()) == {"Orders", "blue%Orders"}

    run(main())


def test_the_status_of_a_topic_adds_up_its_queues_on_all_brokers(tmp_path: Path) -> None:
    """Sends to one queue of each of two brokers."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2) as cluster, admin_of(cluster) as admin:
            await admin.create_topic("Orders", 2)
            for number, count in ((0, 3), (1, 4)):
                client = cluster.client(number)
                for _ in range(count):
                    await client.send("Orders", queue_id=1)
            status = await admin.topic_status("Orders")
            assert status.count == 7
            assert list(status.queues) == [
                MessageQueue("Orders", broker, queue) for broker in ("broker-a", "broker-b") for queue in (0, 1)
            ]
            last = status.queues[MessageQueue("Orders", "broker-b", 1)]
            assert (last.start, last.end, last.count) == (0, 4, 4)
            assert last.last_stored_at is not None
            assert last.last_stored_at.utcoffset() is not None
            assert status.queues[MessageQueue("Orders", "broker-a", 0)].last_stored_at is None
            assert (await admin.topic_status("Orders", broker="broker-a")).count == 3
            await admin.clean_unused_topics()
            assert (await admin.topic_status("Orders")).count == 7

    run(main())


def test_an_ordered_topic_has_its_queues_fixed_at_the_name_servers(tmp_path: Path) -> None:
    """Creates it broker by broker: the second must not undo the first."""

    async def main() -> None:
        async with broker_cluster(tmp_path, masters=2, names=2) as cluster, admin_of(cluster) as admin:
            await admin.update_name_server_config({"orderMessageEnable": True})
            await admin.create_topic("Orders", 4, ordered=True, broker="broker-a")
            await admin.create_topic("Orders", 2, ordered=True, broker="broker-b")
            assert await admin.ordered_queues("Orders") == {"broker-a": 4, "broker-b": 2}
            route = await admin.topic_route("Orders")
            assert route.is_ordered
            assert len(route.write_queues) == 6
            await admin.set_ordered_queues("Orders", {"broker-a": 4})
            assert len((await admin.topic_route("Orders")).write_queues) == 4
            await admin.set_ordered_queues("Orders", {})
            assert await admin.ordered_queues("Orders") == {}
            await admin.delete_topic("Orders")

    run(main())


def test_the_blocking_form_has_the_same_calls_with_the_same_signatures() -> None:
    """Compares every public method of both forms, parameter by parameter."""

    def public(kind: type) -> dict[str, inspect.Signature]:
        return {
            name: inspect.signature(each)
            for name, each in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    asynchronous, blocking = public(rmq_core.aio.Admin), public(rmq_core.Admin)
    assert set(asynchronous) == set(blocking)
    assert {name for name in asynchronous if asynchronous[name] != blocking[name]} == set()
    assert inspect.signature(rmq_core.aio.Admin) == inspect.signature(rmq_core.Admin)
    assert len(blocking) > 75
    for name in blocking:
        ours, theirs = getattr(rmq_core.Admin, name), getattr(rmq_core.aio.Admin, name)
        if name not in ("start", "close"):
            assert inspect.getdoc(ours) == inspect.getdoc(theirs), name


def test_the_blocking_form_works_without_a_loop() -> None:
    """Drives a broker of another process from an ordinary thread, and closes twice."""
    with rmq_core.embedded() as mq, rmq_core.Admin(name_server=mq.name_server) as admin:
        admin.create_topic("Orders", queues=3)
        assert admin.topics() == ("Orders",)
        assert len(admin.topic_status("Orders").queues) == 3
        assert mq.name_server in repr(admin)
        admin.delete_topic("Orders")
        assert admin.topics() == ()
        admin.close()
        with pytest.raises(ClientClosedError):
            admin.topics()
