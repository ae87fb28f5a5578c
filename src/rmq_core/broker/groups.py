"""The subscription groups of a broker and their switches; kept in config/subscriptionGroup.json."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from rmq_core.broker.saved_file import Runner, SavedFile
from rmq_core.broker.topics import next_version
from rmq_core.config import BrokerSettings
from rmq_core.protocol.bodies import (
    DataVersion,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from rmq_core.protocol.message import BUILT_IN_GROUPS, group_name_problem, is_system_group

log = logging.getLogger(__name__)

READ_FORBIDDEN: Final = 1 << 2
"""Bit of the forbidden table."""
GROUP_NAME_MAX: Final = 120


def group_config(name: str) -> SubscriptionGroupConfig:
    """A group as it is made when it first appears."""
    return SubscriptionGroupConfig(
        name,
        consume_message_orderly=False,
        group_retry_policy=GroupRetryPolicy(),
        group_sys_flag=0,
        consume_timeout_minute=15,
        attributes={},
    )


def _saved(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled() and writing.exception() is not None:
        log.error("the groups cannot be saved: %s", writing.exception())


class Groups:
    """All subscription groups of a broker."""

    def __init__(self, settings: BrokerSettings, path: Path, *, run: Runner) -> None:
        self._settings = settings
        self._file = SavedFile(path, lambda: self.wrapper().encode(standard=True), run)
        self.table: dict[str, SubscriptionGroupConfig] = {}
        self.forbidden: dict[str, dict[str, int]] = {}
        """Group → topic → bits."""
        self.data_version = DataVersion(0, 0, 0)

    def load(self) -> None:
        """Read the file and add the built-in groups. Raises RocketMQError where it is unreadable."""
        saved = self._file.load(SubscriptionGroupWrapper.decode)
        if saved is not None:
            self.table = dict(saved.subscription_group_table)
            self.forbidden = {group: dict(topics) for group, topics in (saved.forbidden_table or {}).items()}
            version = saved.data_version or DataVersion()
            self.data_version = replace(version, state_version=version.state_version or 0)
        for name in BUILT_IN_GROUPS:
            self.table.setdefault(name, replace(group_config(name), consume_broadcast_enable=True))
        if not self.data_version.timestamp:
            self.data_version = next_version(self.data_version)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, where it is known."""
        return self.table.get(name)

    def may_create(self, name: str) -> bool:
        """Whether an unknown group of this name is made when it first appears."""
        settings = self._settings
        is_allowed = settings.auto_create_subscription_group or (
            is_system_group(name) and settings.enable_create_sys_group
        )
        return is_allowed and group_name_problem(name, length_max=GROUP_NAME_MAX) is None

    def find_or_begin(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, made now if it may be; the file follows behind. None where there is none.

        For heartbeats and pulls, which are answered in the pass that reads them: what a crash forgets of them
        comes again with the next heartbeat.
        """
        config = self.table.get(name)
        if config is None and self.may_create(name):
            config = self.table[name] = group_config(name)
            self.data_version = next_version(self.data_version)
            self._file.begin().add_done_callback(_saved)
        return config

    async def find_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """The same, durable when this returns."""
        config = self.find_or_begin(name)
        if config is not None:
            await self._file.settled()
        return config

    async def update(self, config: SubscriptionGroupConfig) -> None:
        """Make a group, or change it to this; durable when this returns."""
        if self.table.get(config.group_name) == config:
            await self._file.settled()
            return
        self.table[config.group_name] = config
        self.data_version = next_version(self.data_version)
        await self._file.save()

    async def delete(self, name: str) -> None:
        """Forget a group; durable when this returns."""
        if self.table.pop(name, None) is None:
            await self._file.settled()
            return
        self.forbidden.pop(name, None)
        self.data_version = next_version(self.data_version)
        await self._file.save()

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        return bool(self.forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN)

    async def set_forbidden(self, group: str, topic: str, bits: int) -> None:
        """Say what a group may not do with a topic; durable when this returns."""
        topics = self.forbidden.setdefault(group, {})
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
            if not topics:
                del self.forbidden[group]
        self.data_version = next_version(self.data_version)
        await self._file.save()

    def wrapper(self) -> SubscriptionGroupWrapper:
        """The whole table."""
        return SubscriptionGroupWrapper(dict(self.table), self.data_version, dict(self.forbidden))

    async def settled(self) -> None:
        """Return when all changes are durable. Raises OSError."""
        await self._file.settled()
