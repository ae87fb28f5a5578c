"""Administration of clients: who is connected, what members are doing, and handing them single messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from rmq_core.client.admin_base import MEMBER_TIMEOUT_MS
from rmq_core.client.admin_messages import AdminMessages
from rmq_core.client.admin_results import (
    ConnectedClient,
    ConsumerGroup,
    DirectResult,
    HeldQueue,
    RunningInfo,
    moment,
)
from rmq_core.client.routes import BrokerAddress
from rmq_core.errors import BrokerError
from rmq_core.protocol import bodies as b
from rmq_core.protocol import requests as r
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message import MessageQueue


class AdminClients(AdminMessages):
    """Connected clients."""

    async def consumer_connections(self, group: str, *, broker: str | None = None) -> ConsumerGroup:
        """Who consumes for a group, and what. Raises BrokerError (206) where no member is connected."""
        name = self._group(group)
        targets = await self._of_group(name, broker)
        request = r.GetConsumerConnectionList(name)
        answers = await self._call_some(targets, request, absent=(ResponseCode.CONSUMER_NOT_ONLINE,))
        if not answers:
            raise BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, f"no member of the group {group} is connected")
        found = [b.ConsumerConnection.decode(answer.body) for answer in answers.values()]
        subscriptions = {
            self._bare(topic): self._subscription(data)
            for each in found
            for topic, data in sorted(each.subscription_table.items())
        }
        return ConsumerGroup(
            group,
            _clients(connection for each in found for connection in each.connection_set),
            subscriptions,
            found[0].consume_type,
            found[0].message_model,
            found[0].consume_from_where,
        )

    async def producer_connections(self, group: str, topic: str) -> tuple[ConnectedClient, ...]:
        """Who produces for a group on a topic's brokers; nobody is an empty answer."""
        name, wanted = self._group(group), self._topic(topic)

        async def look(target: BrokerAddress) -> tuple[b.ClientConnection, ...]:
            try:
                answer = await self._call(target.address, r.GetProducerConnectionList(name))
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_ERROR or "not exist" not in error.remark:
                    raise
                return ()
            return b.ProducerConnection.decode(answer.body).connection_set

        found = await self._each(await self._of_topic(wanted), look)
        return _clients(connection for each in found.values() for connection in each)

    async def producers(self, broker: str) -> dict[str, tuple[ConnectedClient, ...]]:
        """Every client that produces, by group."""
        answer = await self._call((await self._broker(broker)).address, r.GetAllProducerInfo())
        table = b.ProducerTableInfo.decode(answer.body).data
        own = set(self._own(table))
        return {
            self._bare(group): tuple(
                ConnectedClient(
                    each.client_id or "",
                    (each.remote_ip or "").removeprefix("/"),
                    each.language or "",
                    each.version,
                    moment(each.last_update_timestamp),
                )
                for each in several
            )
            for group, several in sorted(table.items())
            if self._bare(group) in own
        }

    async def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """A member of a group from inside. Raises BrokerError where no broker has it connected."""
        name = self._group(group)
        request = r.GetConsumerRunningInfo(name, client_id, jstack_enable=stacks)
        body = await self._first(await self._of_group(name), lambda target: self._ask_member(target, request))
        info = b.ConsumerRunningInfo.decode(body)
        return RunningInfo(
            client_id,
            info.properties,
            {self._bare(each.topic): self._subscription(each) for each in info.subscription_set},
            {self._bare_queue(queue): _held(each) for queue, each in info.mq_table.items()},
            {self._bare(topic): each for topic, each in info.status_table.items()},
            info.user_consumer_info or {},
            info.jstack,
        )

    async def _ask_member(
        self, target: BrokerAddress, request: r.GetConsumerRunningInfo | r.ConsumeMessageDirectly
    ) -> bytes:
        return (await self._call(target.address, request, timeout_ms=MEMBER_TIMEOUT_MS)).body

    async def member_positions(
        self, group: str, topic: str, *, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """How far the members of a group, or one of them, have consumed a topic, by client id.

        Members that do not tell are left out; nobody is an empty answer.
        """
        name, wanted = self._group(group), self._topic(topic)
        request = r.InvokeBrokerToGetConsumerStatus(wanted, name, client_id)

        async def look(target: BrokerAddress) -> b.GetConsumerStatusBody:
            try:
                answer = await self._call(target.address, request, timeout_ms=MEMBER_TIMEOUT_MS)
            except BrokerError as error:
                if "online" not in error.remark:
                    raise
                return b.GetConsumerStatusBody()  # its members may all be connected to the others
            return b.GetConsumerStatusBody.decode(answer.body)

        found: dict[str, dict[MessageQueue, int]] = {}
        for body in (await self._each(await self._of_topic(wanted), look)).values():
            for member, positions in (body.consumer_table or {}).items():
                bare = {self._bare_queue(queue): offset for queue, offset in positions.items()}
                found.setdefault(member, {}).update(bare)
        return found

    async def consume_directly(
        self, group: str, client_id: str, msg_id: str, *, topic: str | None = None
    ) -> DirectResult:
        """Have a member consume one message now, and tell what came of it; its progress stays as it is.

        msg_id is the sender's, with the topic, or an offset message id.
        """
        name = self._group(group)
        message = await self.view_message(msg_id, topic=topic)
        address = await self._address_of_message(message)
        request = r.ConsumeMessageDirectly(
            name,
            client_id,
            message.offset_msg_id,
            broker_name=message.queue.broker_name,
            topic=message.record.topic,
        )
        answer = await self._call(address, request, timeout_ms=MEMBER_TIMEOUT_MS)
        result = b.ConsumeMessageDirectlyResult.decode(answer.body)
        return DirectResult(
            result.consume_result,
            result.remark,
            timedelta(milliseconds=result.spent_time_mills),
            result.order,
            result.auto_commit,
        )


def _clients(connections: Iterable[b.ClientConnection]) -> tuple[ConnectedClient, ...]:
    """Each client once: it is connected to several brokers."""
    by_id = {
        each.client_id or "": ConnectedClient(
            each.client_id or "", each.client_addr or "", each.language or "", each.version
        )
        for each in connections
    }
    return tuple(by_id[client_id] for client_id in sorted(by_id))


def _held(info: b.ProcessQueueInfo) -> HeldQueue:
    return HeldQueue(
        info.commit_offset,
        info.cached_msg_min_offset,
        info.cached_msg_max_offset,
        info.cached_msg_count,
        info.cached_msg_size_in_mib,
        info.locked,
        info.dropped,
        moment(info.last_lock_timestamp),
        moment(info.last_pull_timestamp),
        moment(info.last_consume_timestamp),
    )
