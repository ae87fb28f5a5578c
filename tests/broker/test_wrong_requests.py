"""Every request of broker and name server with every field and body wrong: a clear answer, and nobody is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.test_garbage import GONE, WRONG, answer_of, errors_of, refused_or_stored, request
from rmq_core.broker.handlers import all_handlers
from rmq_core.namesrv import handlers as of_name_server
from rmq_core.net.dispatch import handlers_in
from rmq_core.protocol.fields import FieldPlan, field_plans
from rmq_core.protocol.request import REQUESTS
from support.brokers import broker_cluster, run
from support.cluster import address_of

BODIES = [
    b"", b"x", b"[]", b"7", b"null", b"{}", b"{" * 50_000, b"\xff\xfe", b'"text"', b"[null]", b"[7]", b"[{}]",
    b"a=b", b"=", b"\\u12", bytes(100),
]  # fmt: skip
GOOD = {
    "topic": "Orders", "consumerGroup": "CG", "group": "CG", "groupName": "CG", "producerGroup": "PG", "key": "k",
    "maxNum": "32", "endTimestamp": "9999999999999", "clusterName": "DefaultCluster", "brokerName": "broker-a",
    "statsName": "TOPIC_PUT_NUMS", "msgId": "7F00000100002A9F0000000000000000", "commitOrRollback": "8",
}  # fmt: skip
NO_DECISION = (37, "commitOrRollback")
"""A producer that does not know yet whether to commit gets no answer."""


def good_value(plan: FieldPlan) -> str:
    other = {int: "0", bool: "false"}.get(plan.type, "x")
    return GOOD.get(plan.wire_name, other)


def wrong_requests(code: int) -> Iterator[bytes]:
    plans = field_plans(REQUESTS[code])
    good = {plan.wire_name: good_value(plan) for plan in plans}
    for body in BODIES:
        yield request(code, good, body)
    yield request(code, None)
    yield request(code, {})
    for name in [name for name in good if (code, name) != NO_DECISION]:
        for wrong in WRONG:
            changed: dict[str, Any] = {key: value for key, value in good.items() if key != name}
            if wrong is not GONE:
                changed[name] = wrong
            yield request(code, changed)


@pytest.mark.parametrize("is_broker", [True, False])
def test_wrong_requests_are_answered_clearly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_broker: bool
) -> None:
    """Missing, of another type, out of range, and bodies that are none; each code on a connection of its own."""

    async def main() -> None:
        async with broker_cluster(tmp_path) as cluster:
            client = cluster.client()
            await client.send("Orders", b"first", properties={"KEYS": "k"})
            await client.heartbeat(consumers={"CG": {"Orders": "*"}}, producers=("PG",))
            address = cluster.broker.address if is_broker else address_of(cluster.name_servers[0])
            for code in sorted(all_handlers() if is_broker else handlers_in(of_name_server)):
                reader, writer = await asyncio.open_connection(*address.split(":"))
                try:
                    for frame in wrong_requests(code):
                        writer.write(frame)
                        refused_or_stored(await answer_of(reader))
                finally:
                    writer.close()
                assert errors_of(caplog) == [], code
            assert (await client.send("Orders", b"last")).code == 0

    run(main())
