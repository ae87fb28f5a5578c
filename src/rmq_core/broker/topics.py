"""The topics of a broker: how many queues they have and who may use them; kept in config/topics.json.

Visible   A new topic is in the table once its file is durable, so that no message is acknowledged whose topic a
          crash could lose. Those who want it meanwhile share one creation.
Known     Every change is registered with the name servers; creation waits for them, but not for long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from rmq_core.broker.saved_file import Runner, SavedFile
from rmq_core.config import BrokerSettings
from rmq_core.errors import BrokerError
from rmq_core.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rmq_core.protocol.codes import Permission, ResponseCode
from rmq_core.protocol.message import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    CHECK_MAX_TIME_TOPIC,
    CHECKPOINT_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    REPLY_TOPIC_SUFFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYNC_BROKER_MEMBER_PREFIX,
    TIMER_TOPIC,
    TRACE_TOPIC,
    dlq_topic,
    is_system_topic,
    retry_topic,
)

log = logging.getLogger(__name__)

READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
UNIT_SUBSCRIPTION: Final = 2
"""Bit of a retry topic's system flag."""
EVERYTHING: Final = int(Permission.READ | Permission.WRITE | Permission.INHERIT)


def next_version(version: DataVersion) -> DataVersion:
    """The version of a table after one more change."""
    return replace(version, timestamp=time.time_ns() // 1_000_000, counter=version.counter + 1)


def topic_config(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    """A topic with as many queues to read as to write."""
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, attributes={})


class Topics:
    """All topics of a broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        path: Path,
        *,
        run: Runner,
        register: Callable[[TopicConfigSerializeWrapper], Awaitable[None]],
        delay_levels: int = 18,
    ) -> None:
        """register() tells the name servers of changed topics; it returns in time whatever they do."""
        self._settings = settings
        self._register = register
        self._delay_levels = delay_levels
        self._file = SavedFile(path, self._encode_file, run)
        self.table: dict[str, TopicConfig] = {}
        self.data_version = DataVersion(0, 0, 0)
        self._creating: dict[str, tuple[TopicConfig, asyncio.Future[TopicConfig]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self) -> None:
        """Read the file and add the system topics that it lacks. Raises RocketMQError where it is unreadable."""
        saved = self._file.load(TopicConfigSerializeWrapper.decode)
        if saved is not None:
            self.table = dict(saved.topic_config_table)
            version = saved.data_version or DataVersion()
            self.data_version = replace(version, state_version=version.state_version or 0)
        for config in self._system_configs():
            self.table.setdefault(config.topic_name, config)
        if not self.data_version.timestamp:
            self.data_version = next_version(self.data_version)

    def _system_configs(self) -> list[TopicConfig]:
        settings = self._settings
        cluster, broker = settings.broker_cluster_name, settings.broker_name
        configs = [
            topic_config(SELF_TEST_TOPIC, 1),
            topic_config(BENCHMARK_TOPIC, 1024),
            topic_config(cluster, 16, EVERYTHING if settings.cluster_topic_enable else int(Permission.INHERIT)),
            topic_config(broker, 1, EVERYTHING if settings.broker_topic_enable else int(Permission.INHERIT)),
            topic_config(OFFSET_MOVED_TOPIC, 1),
            topic_config(SCHEDULE_TOPIC, max(self._delay_levels, 18)),
            topic_config(cluster + REPLY_TOPIC_SUFFIX, 1),
            topic_config(REVIVE_TOPIC_PREFIX + cluster, 8),
            topic_config(SYNC_BROKER_MEMBER_PREFIX + broker, 1, int(Permission.INHERIT)),
            topic_config(HALF_TOPIC, 1),
            topic_config(OP_HALF_TOPIC, 1),
            topic_config(TIMER_TOPIC, 1),
        ]
        if settings.auto_create_topic_enable:
            configs.append(topic_config(AUTO_CREATE_TOPIC, settings.default_topic_queue_nums, EVERYTHING))
        if settings.trace_topic_enable:
            configs.append(topic_config(settings.msg_trace_topic_name, 1))
        return configs

    def system_topics(self) -> list[str]:
        """Names that clients may not create or delete, whether or not the topics are there."""
        names = [config.topic_name for config in self._system_configs()]
        return list(dict.fromkeys([*names, AUTO_CREATE_TOPIC, TRACE_TOPIC, CHECK_MAX_TIME_TOPIC, CHECKPOINT_TOPIC]))

    def is_system(self, name: str) -> bool:
        return is_system_topic(name) or name in self.system_topics()

    def get(self, name: str) -> TopicConfig | None:
        return self.table.get(name)

    # Changes

    async def create(self, config: TopicConfig) -> TopicConfig:
        """Make a topic, or change it to this; returns when that is durable and the name servers were told.

        Raises OSError where it cannot be kept: nothing has changed then.
        """
        name = config.topic_name
        while (under_way := self._creating.get(name)) is not None:
            created = await asyncio.shield(under_way[1])
            if created == config:
                return created
        if self.table.get(name) == config:
            return config
        loop = asyncio.get_running_loop()
        future: asyncio.Future[TopicConfig] = loop.create_future()
        self._creating[name] = (config, future)
        # A task of its own: others wait for it too, and who asked first may be refused or gone before it is done.
        task = loop.create_task(self._create(config, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(future)

    async def _create(self, config: TopicConfig, future: asyncio.Future[TopicConfig]) -> None:
        """Make a topic and tell those who wait for it, also where it cannot be made."""
        self.data_version = next_version(self.data_version)
        try:
            await self._file.save()
        except BaseException as error:
            del self._creating[config.topic_name]
            if not isinstance(error, Exception):  # the broker stops
                future.cancel()
                raise
            future.set_exception(error)
            future.exception()  # it has been seen, even if nobody waits any more
            return
        del self._creating[config.topic_name]
        self.table[config.topic_name] = config
        # A version of its own for what is told now: a name server takes nothing new under a version that it has
        # seen, and another topic's registration may have carried the one in the file.
        self.data_version = next_version(self.data_version)
        try:
            await self._register(TopicConfigSerializeWrapper({config.topic_name: config}, self.data_version))
        finally:
            future.set_result(config)

    async def create_for_send(self, name: str, default_topic: str, queue_count: int) -> TopicConfig:
        """The topic of a message whose topic is not known: made after the default topic, where that allows it.

        Raises BrokerError (17) where it does not.
        """
        under_way = self._creating.get(name)
        if under_way is not None:
            return await asyncio.shield(under_way[1])
        model = self.table.get(default_topic)
        if model is not None and default_topic == AUTO_CREATE_TOPIC and not self._settings.auto_create_topic_enable:
            model = None
        if model is None or not model.perm & Permission.INHERIT:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        queues = max(min(queue_count, model.write_queue_nums), 0) or model.write_queue_nums
        config = topic_config(name, queues, model.perm & ~int(Permission.INHERIT))
        return await self.create(replace(config, topic_filter_type=model.topic_filter_type))

    async def create_retry_topic(
        self, group: str, queues: int = 1, *, order: bool | None = None, unit_mode: bool = False
    ) -> TopicConfig:
        """%RETRY%group with at least so many queues; one that is there is enlarged, never made smaller.

        unit_mode: a topic that is made now says that its group consumes in units.
        """
        name = retry_topic(group)
        known = self.table.get(name)
        if known is None:
            flag = UNIT_SUBSCRIPTION if unit_mode else 0
            config = replace(topic_config(name, max(queues, 1)), order=bool(order), topic_sys_flag=flag)
            return await self.create(config)
        is_small = queues > known.read_queue_nums
        is_other = order is not None and order != known.order
        if not is_small and not is_other:
            return known
        changed = replace(known, order=known.order if order is None else order)
        if is_small:
            changed = replace(changed, read_queue_nums=queues, write_queue_nums=queues)
        return await self.create(changed)

    async def create_dead_letter_topic(self, group: str) -> TopicConfig:
        """%DLQ%group, made when the first message goes there."""
        name = dlq_topic(group)
        return self.table.get(name) or await self.create(topic_config(name, 1))

    async def create_internal(self, name: str) -> TopicConfig:
        """A topic of the broker's own that is made on first use."""
        return self.table.get(name) or await self.create(topic_config(name, 1))

    async def delete(self, name: str) -> None:
        """Forget a topic; durable when this returns. Its messages and offsets are the caller's to remove."""
        while (under_way := self._creating.get(name)) is not None:
            await asyncio.wait([under_way[1]])  # whether or not it comes to be
        config = self.table.pop(name, None)
        if config is None:
            await self._file.settled()
            return
        self.data_version = next_version(self.data_version)
        try:
            await self._file.save()
        except OSError:
            self.table.setdefault(name, config)
            raise

    def mark_ordered(self, names: list[str]) -> None:
        """Name servers say that these topics are ordered; they stay so."""
        changed = False
        for name in names:
            config = self.table.get(name)
            if config is not None and not config.order:
                self.table[name] = replace(config, order=True)
                changed = True
        if changed:
            self.data_version = next_version(self.data_version)
            self._file.begin().add_done_callback(_saved)

    def touch(self) -> None:
        """Make name servers take the table anew: what they must know beside it has changed."""
        self.data_version = next_version(self.data_version)

    # Encoded

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """The whole table."""
        return TopicConfigSerializeWrapper(dict(self.table), self.data_version)

    def _encode_file(self) -> bytes:
        creating = {name: config for name, (config, _) in self._creating.items()}
        return TopicConfigSerializeWrapper(self.table | creating, self.data_version).encode(standard=True)

    async def settled(self) -> None:
        """Return when all changes are durable. Raises OSError."""
        await self._file.settled()


def _saved(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled() and writing.exception() is not None:
        log.error("the topics cannot be saved: %s", writing.exception())
