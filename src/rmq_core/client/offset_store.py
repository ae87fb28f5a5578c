"""How far a consumer is: in memory, and on the broker or in a file.

Memory   update() says where to go on; only persisting makes it last. What persist() is not asked for any more is
         forgotten, because another member has it now.
Broker   Progress of a group. Goes to the master without waiting for an answer, unless one is asked for; where no
         master is known, to another process of the broker.
File     Progress of one member that gets every message. JSON as Java writes it, the one before kept as .bak,
         replaced as a whole. Queues that this member did not read since it started keep what the file says of them.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rmq_core.client.routes import BrokerAddress
from rmq_core.errors import BrokerError, NoRouteError, RocketMQError
from rmq_core.files import read_or_backup, replace_file
from rmq_core.protocol.bodies import ResetOffsetBody
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.requests import QueryConsumerOffset, UpdateConsumerOffset

if TYPE_CHECKING:
    from rmq_core.client.instance import ClientInstance

logger = logging.getLogger(__name__)
_TIMEOUT_MS: Final = 5_000


class OffsetStore(Protocol):
    """Where a consumer keeps its progress. Queues are named as on the wire."""

    async def load(self) -> None:
        """Read what there is, before anything else."""
        ...

    def position(self, queue: MessageQueue) -> int | None:
        """Where to go on, as far as memory knows."""
        ...

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """The same for every queue of a topic."""
        ...

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Go on from here; with increase_only unless memory is further already."""
        ...

    def forget(self, queue: MessageQueue) -> None:
        """Drop it from memory."""
        ...

    async def fetch(self, queue: MessageQueue, *, young_is_zero: bool = True) -> int | None:
        """What was made to last; None where there is no progress yet. Raises where it cannot be told.

        Brokers say 0 to a new group where a topic is so young that its first message is still in memory, unless
        young_is_zero is False; those of 4.9 say so in any case.
        """
        ...

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Make the progress of these queues last, and forget all others. Logs what fails. Nothing for no queues."""
        ...

    async def persist_one(
        self, queue: MessageQueue, offset: int | None = None, *, acknowledged: bool = False
    ) -> None:
        """Make this offset last, or what memory says; with acknowledged it has lasted when this returns. Raises."""
        ...


class _Memory:
    """The table that both kinds share."""

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}

    def position(self, queue: MessageQueue) -> int | None:
        return self._table.get(queue)

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: offset for queue, offset in self._table.items() if queue.topic == topic}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        if not increase_only or offset > self._table.get(queue, -1):
            self._table[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._table.pop(queue, None)

    def _keep_only(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        wanted = set(queues)
        for queue in self._table.keys() - wanted:
            logger.info("the progress of %s is another member's now", queue)
            del self._table[queue]
        return dict(self._table)


class RemoteOffsets(_Memory):
    """A group's progress, kept by the brokers."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group

    def __repr__(self) -> str:
        return f"RemoteOffsets({self._group!r}, {len(self._table)} queues)"

    async def load(self) -> None:
        """Brokers are asked queue by queue."""

    async def fetch(self, queue: MessageQueue, *, young_is_zero: bool = True) -> int | None:
        broker = await self._broker(queue)
        request = QueryConsumerOffset(
            self._group, queue.topic, queue.queue_id, set_zero_if_not_found=None if young_is_zero else False
        )
        try:
            answer = await self._instance.call(broker.address, request, timeout_ms=_TIMEOUT_MS)
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None
        return answer.header.queue_offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        if not queues:
            return
        for queue, offset in self._keep_only(queues).items():
            try:
                await self.persist_one(queue, offset)
            except RocketMQError as error:
                logger.warning("%s: progress of %s is not stored: %s", self._group, queue, error)

    async def persist_one(
        self, queue: MessageQueue, offset: int | None = None, *, acknowledged: bool = False
    ) -> None:
        if offset is None:
            offset = self._table.get(queue)
        if offset is None:
            return
        broker = await self._broker(queue)
        request = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        if acknowledged:
            await self._instance.call(broker.address, request, timeout_ms=_TIMEOUT_MS)
        else:
            await self._instance.channel(broker.address).oneway(request)

    async def _broker(self, queue: MessageQueue) -> BrokerAddress:
        try:
            return self._instance.broker(queue.broker_name)
        except NoRouteError:
            await self._instance.route(queue.topic, refresh=True)
            return self._instance.broker(queue.broker_name)


class FileOffsets(_Memory):
    """One member's progress, kept in a file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._stored: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"FileOffsets({str(self._path)!r}, {len(self._table)} queues)"

    async def load(self) -> None:
        """Read the file, or the one before it. Raises RocketMQError where neither can be read."""
        body = await asyncio.to_thread(read_or_backup, self._path, ResetOffsetBody.decode)
        self._stored = {} if body is None else dict(body.offset_table)
        self._table = dict(self._stored)

    async def fetch(self, queue: MessageQueue, *, young_is_zero: bool = True) -> int | None:
        return self._stored.get(queue)

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        if not queues:
            return
        try:
            await self._write(self._keep_only(queues))
        except OSError as error:
            logger.warning("progress is not stored in %s: %s", self._path, error)

    async def persist_one(
        self, queue: MessageQueue, offset: int | None = None, *, acknowledged: bool = False
    ) -> None:
        if offset is None:
            offset = self._table.get(queue)
        if offset is None:
            return
        try:
            await self._write({queue: offset})
        except OSError as error:
            raise RocketMQError(f"progress is not stored in {self._path}: {error}") from error

    async def _write(self, progress: dict[MessageQueue, int]) -> None:
        async with self._writing:
            merged = {**self._stored, **progress}
            if merged == self._stored:
                return
            # In a thread: the file is forced to the disk, and the loop must not wait for that.
            await asyncio.to_thread(replace_file, self._path, offset_file_bytes(merged))
            self._stored = merged


def offset_file_bytes(progress: dict[MessageQueue, int]) -> bytes:
    """The file's content: {"offsetTable":{queue:offset,…}}, as Java writes it."""
    return ResetOffsetBody(dict(sorted(progress.items()))).encode()


def offset_file(folder: str | Path | None, *, instance_name: str, group: str) -> Path:
    """Where the progress of one member of a group is kept: processes that follow one another find it again."""
    home = Path.home() / ".rocketmq_offsets" if folder is None else Path(folder)
    return home / _folder_name(instance_name) / _folder_name(group) / "offsets.json"


def _folder_name(text: str) -> str:
    # Neither a path of its own nor a name that some system cannot hold, and another one for each text.
    return urllib.parse.quote(text, safe=" @#").replace(".", "%2E" if not text.strip(".") else ".")
