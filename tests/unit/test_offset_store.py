"""Progress in memory and in files: Java's rules and Java's file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmq_core.client.offset_store import FileOffsets, offset_file
from rmq_core.errors import RocketMQError
from rmq_core.protocol.message import MessageQueue

JAVA_FILE = Path(__file__).parent.parent / "data" / "java" / "offsets.json"
"""Written by Apache's LocalFileOffsetStore, 4.9.7 and 5.3.3 alike."""

FIRST = MessageQueue("Orders", "broker-a", 0)
SECOND = MessageQueue("Orders", "broker-a", 1)
OTHER = MessageQueue("Bills", "broker-b", 3)


def loaded(path: Path) -> FileOffsets:
    store = FileOffsets(path)
    asyncio.run(store.load())
    return store


def stored(path: Path, *queues: MessageQueue) -> list[int | None]:
    """What a new process finds in the file."""

    async def main() -> list[int | None]:
        store = FileOffsets(path)
        await store.load()
        return [await store.fetch(queue) for queue in queues]

    return asyncio.run(main())


def test_a_file_of_javas_is_read() -> None:
    """Pretty printed, with objects for keys: no JSON that a usual parser takes."""
    assert stored(JAVA_FILE, FIRST, SECOND, OTHER) == [42, 7, 123456789012]
    assert loaded(JAVA_FILE).positions("Orders") == {FIRST: 42, SECOND: 7}


def test_a_file_is_written_as_java_reads_it(tmp_path: Path) -> None:
    """The bytes that Apache's store of either version was seen to read."""
    path = tmp_path / "group" / "offsets.json"

    async def main() -> None:
        store = FileOffsets(path)
        await store.load()
        store.update(FIRST, 99)
        store.update(OTHER, 2**40)
        await store.persist([FIRST, OTHER])

    asyncio.run(main())
    assert path.read_bytes() == (
        b'{"offsetTable":{{"brokerName":"broker-b","queueId":3,"topic":"Bills"}:1099511627776,'
        b'{"brokerName":"broker-a","queueId":0,"topic":"Orders"}:99}}'
    )


def test_memory_goes_back_only_where_it_may(tmp_path: Path) -> None:
    """A lower offset with and without increase_only, for a queue that is known and for one that is not."""
    store = FileOffsets(tmp_path / "offsets.json")
    store.update(FIRST, 5, increase_only=True)
    store.update(FIRST, 3, increase_only=True)
    assert store.position(FIRST) == 5
    store.update(FIRST, 3)
    assert store.position(FIRST) == 3
    store.forget(FIRST)
    assert store.position(FIRST) is None


def test_what_is_not_asked_for_is_forgotten_and_stays_in_the_file(tmp_path: Path) -> None:
    """Persists two queues, then one of them with the other moved on in memory."""
    path = tmp_path / "offsets.json"

    async def main() -> None:
        store = FileOffsets(path)
        store.update(FIRST, 5)
        store.update(SECOND, 6)
        await store.persist([FIRST, SECOND])
        store.update(FIRST, 7)
        store.update(SECOND, 8)
        await store.persist([FIRST])
        assert store.position(SECOND) is None
        await store.persist([])
        assert store.position(FIRST) == 7

    asyncio.run(main())
    assert stored(path, FIRST, SECOND) == [7, 6]


def test_one_queue_is_persisted_by_itself(tmp_path: Path) -> None:
    """With an offset, with what memory says, and where memory says nothing."""
    path = tmp_path / "offsets.json"

    async def main() -> None:
        store = FileOffsets(path)
        await store.persist_one(FIRST)
        assert not path.exists()
        await store.persist_one(FIRST, 4)
        store.update(SECOND, 5)
        await store.persist_one(SECOND, acknowledged=True)

    asyncio.run(main())
    assert stored(path, FIRST, SECOND) == [4, 5]


def test_many_persist_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """Fifty queues, each persisted by a task of its own."""
    path = tmp_path / "offsets.json"
    queues = [MessageQueue("Orders", "broker-a", number) for number in range(50)]

    async def main() -> None:
        store = FileOffsets(path)
        await asyncio.gather(*(store.persist_one(queue, queue.queue_id + 1) for queue in queues))

    asyncio.run(main())
    assert stored(path, *queues) == [queue.queue_id + 1 for queue in queues]


def test_a_damaged_file_gives_way_to_the_one_before(tmp_path: Path) -> None:
    """Cuts the file after two rounds, then damages the one before it too."""
    path = tmp_path / "offsets.json"

    async def main() -> None:
        store = FileOffsets(path)
        await store.persist_one(FIRST, 1)
        await store.persist_one(FIRST, 2)

    asyncio.run(main())
    path.write_bytes(path.read_bytes()[:-5])
    assert stored(path, FIRST) == [1]
    path.write_bytes(b"{")
    path.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(RocketMQError, match=r"offsets\.json cannot be read"):
        loaded(path)


def test_a_file_that_cannot_be_written_is_said_and_progress_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the folder should be: persist() logs, persist_one() raises, memory stays."""
    (tmp_path / "group").write_text("in the way")
    path = tmp_path / "group" / "offsets.json"

    async def main() -> None:
        store = FileOffsets(path)
        store.update(FIRST, 5)
        await store.persist([FIRST])
        assert store.position(FIRST) == 5
        with pytest.raises(RocketMQError, match="progress is not stored"):
            await store.persist_one(FIRST)

    asyncio.run(main())
    assert "progress is not stored" in caplog.text


def test_every_member_of_a_group_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Names that are paths, or that some system cannot hold, stay below the folder and differ."""
    names = ["worker", "hz@worker", "..", "../x", "a/b", "a|b", "a%7Cb", "a:b"]
    paths = [offset_file(tmp_path, instance_name=name, group="shop%group") for name in names]
    assert len(set(paths)) == len(names)
    for path in paths:
        assert path.name == "offsets.json"
        assert path.resolve().parent.parent.parent == tmp_path.resolve()
        assert not set(path.parent.parent.name) & set('/\\|:*?"<>')
    assert offset_file(None, instance_name="worker", group="g").parts[-4:] == (
        ".rocketmq_offsets", "worker", "g", "offsets.json",
    )  # fmt: skip
