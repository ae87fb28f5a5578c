"""Our broker answers the recorded requests as Apache's did.

For one exchange of each shape our broker is brought into the state that the recorded one was in, then gets the
recorded frame over a real socket. Code, header fields and body must be the recorded ones, but for the differences
that are listed with their reasons.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.protocol.command import Command, decode_command, encode_command
from support.brokers import Cluster, broker_cluster, run
from support.recorded import Case, Difference, cases, compare, differences
from support.recorded_states import BUILDERS, Scene

CODES = sorted({case.exchange.code for case in cases()})


async def ask(scene: Scene) -> Command | None:
    """Send the request as it was recorded, or with the places in the log that are ours; None for no answer."""
    frame = scene.case.exchange.request.frame
    if scene.ext != (scene.request.ext or {}):
        frame = encode_command(replace(scene.request, ext=scene.ext))
    host, _, port = scene.broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(frame)
        if scene.case.exchange.is_oneway:
            # Nothing must come before the answer to what follows.
            writer.write(encode_command(Command(9999, opaque=1)))
        prefix = await asyncio.wait_for(reader.readexactly(4), 60)
        answer = decode_command(prefix + await reader.readexactly(int.from_bytes(prefix, "big")))
    finally:
        writer.close()
        await writer.wait_closed()
    return None if scene.case.exchange.is_oneway and answer.opaque == 1 else answer


def forget(cluster: Cluster) -> None:
    """Make the broker one that nobody has used."""
    broker = cluster.broker
    for topic in {topic for topic, _ in broker.store.queues.table}:
        broker.store.remove_topic(topic)
    for topic in [name for name in broker.topics.table if not broker.topics.is_system(name)]:
        del broker.topics.table[topic]
        broker.offsets.remove_topic(topic)
    broker.groups.table.clear()
    broker.groups.load()


async def replay(cluster: Cluster, case: Case, allowed: list[Difference]) -> list[str]:
    """What is different and not allowed."""
    scene = Scene(cluster, case)
    before = replace(cluster.broker.settings)
    try:
        await BUILDERS[case.state](scene)
        answer = await ask(scene)
    finally:
        for member in scene.members:
            await member.channel.close()
        cluster.apps[0].settings.__dict__.update(before.__dict__)
        forget(cluster)
    if answer is None:
        return []
    if case.exchange.response is None:
        return [f"{case}: answered {answer.code}"]
    assert answer.opaque == scene.request.opaque
    found = list(compare(case, answer))
    for difference in allowed:
        if not found or not difference.applies_to(case):
            continue
        if difference.ours is not None:
            if answer.code != difference.ours or found != ["code"]:
                continue
            found = []
            difference.is_used = True
        elif not set(difference.names).isdisjoint(found):
            found = [name for name in found if name not in difference.names]
            difference.is_used = True
    if not found:
        return []
    return [f"{case}: {', '.join(found)}: {answer.code} {answer.remark} {answer.ext} {answer.body[:300]!r}"]


@pytest.mark.parametrize("code", CODES)
def test_recorded_requests_get_the_recorded_answers(code: int, tmp_path: Path) -> None:
    """Sends every kept frame of one request code, both header encodings among them."""

    async def main() -> None:
        allowed = [each for each in differences() if code in each.codes]
        problems: list[str] = []
        async with broker_cluster(
            tmp_path,
            broker_cluster_name="FramesCluster",
            enable_property_filter=True,
            long_polling_enable=False,
            short_polling_time_mills=1,
        ) as cluster:
            for case in cases():
                if case.exchange.code == code:
                    problems += await replay(cluster, case, allowed)
        problems += [f"not needed any more: {each.reason}" for each in allowed if not each.is_used]
        assert not problems, "\n".join(problems)

    run(main())


def test_differences_are_of_requests_that_were_recorded() -> None:
    """An entry for a code that no case has would never be missed."""
    for each in differences():
        assert each.codes, each.reason
        assert set(each.codes) <= set(CODES), each.reason
