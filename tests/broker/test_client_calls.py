"""Questions that the broker passes on to members of groups, over the connections they keep to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rmq_core.clock import ManualClock
from rmq_core.errors import BrokerError
from rmq_core.net.calls import Answer
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import ConsumerData, GetConsumerStatusBody, HeartbeatData
from rmq_core.protocol.command import Command, HeaderEncoding
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import decode_record
from rmq_core.protocol.request import NoFields
from support.brokers import Cluster, broker_cluster, run
from support.members import Member, member

RUNNING_INFO, DIRECTLY, STATUS = 307, 309, 221


async def refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(BrokerError) as raised:
        await call
    return raised.value.code, raised.value.remark


async def joined(cluster: Cluster, client_id: str, group: str = "CG") -> Member:
    client = member(cluster)
    await client.heartbeat(client_id, consumers={group: {"Orders": "*"}})
    return client


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_a_members_answer_is_handed_on_as_it_is(tmp_path: Path, encoding: HeaderEncoding) -> None:
    """The answer's code, remark, fields and body are the member's; the request reaches it unchanged."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            asked, other = await joined(cluster, "one"), await joined(cluster, "two")
            asked.answers[RUNNING_INFO] = Answer(r.QueueOffset(7), b'{"jstack":"..."}', 0, "as Java says it")
            admin = cluster.client()
            fields = r.GetConsumerRunningInfo("CG", "one", jstack_enable=True).to_ext() | {"own": "field"}
            connection = await admin.channel.connect()
            request = Command(RUNNING_INFO, 5, ext=fields, body=b"question", encoding=encoding)
            answer = await connection.exchange(request, timeout_ms=60_000)
            assert (answer.code, answer.remark, answer.ext) == (0, "as Java says it", {"offset": "7"})
            assert (answer.body, answer.encoding) == (b'{"jstack":"..."}', encoding)
            command = await asked.until_told(RUNNING_INFO)
            assert (command.ext, command.body, command.is_oneway) == (fields, b"question", False)
            assert other.count(RUNNING_INFO) == 0
            asked.answers[RUNNING_INFO] = Answer(NoFields(), b"", 1, "The Consumer Group <CG> not exist")
            code, remark = await refusal(admin.call(r.GetConsumerRunningInfo("CG", "one")))
            assert (code, remark) == (1, "The Consumer Group <CG> not exist")

    run(main())


def test_a_member_that_is_not_there_or_does_not_answer_is_told_of(tmp_path: Path) -> None:
    """Unknown group, unknown client, one that stays silent for ten seconds, one that leaves meanwhile."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            admin, silent = cluster.client(), await joined(cluster, "one")
            for group, client_id in (("CG", "two"), ("nobody", "one")):
                code, remark = await refusal(admin.call(r.GetConsumerRunningInfo(group, client_id)))
                assert (code, remark) == (1, f"The Consumer <{group}> <{client_id}> not online")
            asking = asyncio.ensure_future(refusal(admin.call(r.GetConsumerRunningInfo("CG", "one"))))
            await silent.until_told(RUNNING_INFO)
            await clock.advance(10_000)
            code, remark = await asking
            assert code == 207
            assert remark.startswith("consumer <CG> <one> Timeout: ")
            asking = asyncio.ensure_future(refusal(admin.call(r.GetConsumerRunningInfo("CG", "one"))))
            await silent.until_told(RUNNING_INFO, 2)
            await silent.channel.close()
            code, remark = await asking
            assert code == 1
            assert remark.startswith("invoke consumer <CG> <one> Exception: ")

    run(main())


async def join_as_old(cluster: Cluster, client_id: str, version: int) -> Member:
    """A member whose frames name an old version."""
    client = member(cluster)
    data = HeartbeatData(client_id, (), (ConsumerData("CG"),))
    connection = await client.channel.connect()
    answer = await connection.exchange(Command(34, 1, body=data.encode(), version=version), timeout_ms=60_000)
    assert answer.code == 0
    return client


def test_old_clients_are_not_asked_what_they_do_not_know(tmp_path: Path) -> None:
    """A version just below each gate is refused, the gate's own is asked."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            admin = cluster.client()
            await join_as_old(cluster, "old", 61)
            code, remark = await refusal(admin.call(r.GetConsumerRunningInfo("CG", "old")))
            assert code == 1
            assert "too low to finish, please upgrade it to V3_1_8_SNAPSHOT" in remark
            just = await join_as_old(cluster, "just", 62)
            just.answers[RUNNING_INFO] = Answer(NoFields())
            assert (await admin.call(r.GetConsumerRunningInfo("CG", "just"))).code == 0
            await join_as_old(cluster, "ancient", 27)
            code, remark = await refusal(admin.call(r.InvokeBrokerToGetConsumerStatus("Orders", "CG")))
            assert code == 1
            assert remark.startswith("the client does not support this feature. version=")

    run(main())


def test_a_member_consumes_a_message_of_this_broker_directly(tmp_path: Path) -> None:
    """By its offset id; the record goes along with what the client needs to know of broker, topic and group."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            admin, asked = cluster.client(), await joined(cluster, "one")
            asked.answers[DIRECTLY] = Answer(NoFields(), b'{"consumeResult":"CR_SUCCESS"}')
            sent = await admin.send("Orders", b"the message", properties={"KEYS": "k"})
            request = r.ConsumeMessageDirectly("CG", "one", sent.header.msg_id, topic="Orders")
            answer = await admin.call(request)
            assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'
            command = await asked.until_told(DIRECTLY)
            assert command.ext == {
                "consumerGroup": "CG",
                "clientId": "one",
                "msgId": sent.header.msg_id,
                "topic": "Orders",
                "brokerName": "broker-a",
                "topicSysFlag": "0",
                "groupSysFlag": "0",
            }
            record = decode_record(command.body, verify_crc=True)
            assert (record.body, record.queue_offset, len(command.body)) == (b"the message", 0, record.size)
            await admin.call(r.ConsumeMessageDirectly("CG", "one", sent.header.msg_id))
            command = await asked.until_told(DIRECTLY, 2)
            assert "topicSysFlag" not in (command.ext or {})
            far_away = sent.header.msg_id[:-16] + "%016X" % (1 << 40)
            for bad in ("nonsense", "", far_away):
                code, remark = await refusal(admin.call(r.ConsumeMessageDirectly("CG", "one", bad)))
                assert code == 1
                assert remark
            code, remark = await refusal(admin.call(r.ConsumeMessageDirectly("CG", None, sent.header.msg_id)))
            assert (code, remark) == (1, "The Consumer <CG> <> not online")

    run(main())


def test_what_members_have_consumed_is_gathered_from_those_that_answer(tmp_path: Path) -> None:
    """Three members: one answers, one with garbage, one never; then only one is asked for."""

    async def main() -> None:
        clock = ManualClock()
        async with broker_cluster(tmp_path, clock=clock) as cluster:
            admin = cluster.client()
            one, garbled, silent = [await joined(cluster, each) for each in ("one", "garbled", "silent")]
            queue = MessageQueue("Orders", "broker-a", 0)
            one.answers[STATUS] = Answer(NoFields(), GetConsumerStatusBody({queue: 3}).encode())
            garbled.answers[STATUS] = Answer(NoFields(), b"{{{")
            asking = asyncio.ensure_future(admin.call(r.InvokeBrokerToGetConsumerStatus("Orders", "CG")))
            for each in (one, garbled, silent):
                command = await each.until_told(STATUS)
                assert command.ext == {"topic": "Orders", "group": "CG"}
            await clock.advance(5_000)
            answer = await asking
            assert b'"messageQueueTable":{}' in answer.body
            assert GetConsumerStatusBody.decode(answer.body).consumer_table == {"one": {queue: 3}}
            answer = await admin.call(r.InvokeBrokerToGetConsumerStatus("Orders", "CG", "one"))
            assert GetConsumerStatusBody.decode(answer.body).consumer_table == {"one": {queue: 3}}
            assert [one.count(STATUS), garbled.count(STATUS), silent.count(STATUS)] == [2, 1, 1]
            code, remark = await refusal(admin.call(r.InvokeBrokerToGetConsumerStatus("Orders", "nobody")))
            assert (code, remark) == (1, "No Any Consumer online in the consumer group: [nobody]")

    run(main())


@pytest.mark.parametrize("code", [39, 40, 220, 221, 326])
def test_what_only_clients_serve_the_broker_does_not(tmp_path: Path, code: int) -> None:
    """Requests in the wrong direction get code 3."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            connection = await cluster.client().channel.connect()
            answer = await connection.exchange(Command(code, 1, ext={}), timeout_ms=60_000)
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    run(main())
