"""Topics and groups as files: an answer means that the change is durable, whoever wrote it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.groups import Groups, group_config
from rmq_core.broker.topics import Topics, topic_config
from rmq_core.config import BrokerSettings
from rmq_core.protocol.bodies import SubscriptionGroupWrapper, TopicConfigSerializeWrapper


class SlowDisk:
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.fails = False

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await self.is_open.wait()
        if self.fails:
            raise OSError("no room")
        return function(*arguments)


async def registered(changed: TopicConfigSerializeWrapper) -> None:
    pass


def make_groups(folder: Path, disk: SlowDisk) -> Groups:
    groups = Groups(BrokerSettings(), folder / "subscriptionGroup.json", run=disk.run)
    groups.load()
    return groups


def make_topics(folder: Path, disk: SlowDisk) -> Topics:
    topics = Topics(BrokerSettings(), folder / "topics.json", run=disk.run, register=registered)
    topics.load()
    return topics


def saved_groups(folder: Path) -> SubscriptionGroupWrapper:
    return SubscriptionGroupWrapper.decode((folder / "subscriptionGroup.json").read_bytes())


def saved_topics(folder: Path) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper.decode((folder / "topics.json").read_bytes())


async def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that has gone as far as it can for now."""
    task = asyncio.get_running_loop().create_task(work)
    for _ in range(10):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    "again",
    [
        lambda groups: groups.update(group_config("G")),
        lambda groups: groups.find_or_create("G"),
        lambda groups: groups.delete("none"),
    ],
)
def test_who_finds_nothing_to_change_waits_for_the_change_of_another(
    tmp_path: Path, again: Callable[[Groups], Coroutine[Any, Any, Any]]
) -> None:
    """The same group is asked for twice; while the file is being written, neither may be answered."""

    async def main() -> None:
        disk = SlowDisk()
        groups = make_groups(tmp_path, disk)
        first = await begun(groups.find_or_create("G"))
        second = await begun(again(groups))
        assert not first.done()
        assert not second.done()
        disk.is_open.set()
        await asyncio.gather(first, second)
        assert "G" in saved_groups(tmp_path).subscription_group_table

    asyncio.run(main())


def test_a_group_whose_write_failed_is_written_when_it_is_asked_for_again(tmp_path: Path) -> None:
    """The table has it already: only the file says that it is not kept."""

    async def main() -> None:
        disk = SlowDisk()
        disk.is_open.set()
        groups = make_groups(tmp_path, disk)
        disk.fails = True
        for _ in range(2):
            with pytest.raises(OSError, match="no room"):
                await groups.update(group_config("G"))
        disk.fails = False
        await groups.update(group_config("G"))
        assert "G" in saved_groups(tmp_path).subscription_group_table

    asyncio.run(main())


def test_changes_of_groups_at_one_time_are_all_kept(tmp_path: Path) -> None:
    """Groups made, forbidden and deleted while the file is being written."""

    async def main() -> None:
        disk = SlowDisk()
        groups = make_groups(tmp_path, disk)
        before = groups.data_version.counter
        tasks = [await begun(groups.update(group_config(f"G{number}"))) for number in range(10)]
        tasks.append(await begun(groups.set_forbidden("G1", "T", 4)))
        tasks.append(await begun(groups.delete("G2")))
        disk.is_open.set()
        await asyncio.gather(*tasks)
        saved = saved_groups(tmp_path)
        assert {f"G{number}" for number in range(10) if number != 2} <= set(saved.subscription_group_table)
        assert "G2" not in saved.subscription_group_table
        assert saved.forbidden_table == {"G1": {"T": 4}}
        assert saved.data_version is not None
        assert saved.data_version.counter == groups.data_version.counter == before + 12

    asyncio.run(main())


def test_a_topic_that_is_being_made_is_deleted_behind_it(tmp_path: Path) -> None:
    """Deleting waits until the topic is there: it must not appear after it was called deleted."""

    async def main() -> None:
        disk = SlowDisk()
        topics = make_topics(tmp_path, disk)
        making = await begun(topics.create(topic_config("T", 4)))
        deleting = await begun(topics.delete("T"))
        assert not deleting.done()
        disk.is_open.set()
        await asyncio.gather(making, deleting)
        assert "T" not in topics.table
        assert "T" not in saved_topics(tmp_path).topic_config_table

    asyncio.run(main())


def test_a_topic_that_name_servers_call_ordered_is_kept_so(tmp_path: Path) -> None:
    """The file has it before the next change, and what cannot be written now is written when all is settled."""

    async def main() -> None:
        disk = SlowDisk()
        disk.is_open.set()
        topics = make_topics(tmp_path, disk)
        await topics.create(topic_config("T", 4))
        disk.fails = True
        topics.mark_ordered(["T", "none"])
        with pytest.raises(OSError, match="no room"):
            await topics.settled()
        disk.fails = False
        await topics.settled()
        assert saved_topics(tmp_path).topic_config_table["T"].order

    asyncio.run(main())
