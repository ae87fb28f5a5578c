"""What groups that could pop ask of a broker that only lets them pull."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_core.net.calls import Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol import requests as r
from rmq_core.protocol.bodies import (
    MessageQueueAssignment,
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmq_core.protocol.request import NoFields

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker


@handles(r.QueryAssignment)
async def query_assignment(broker: Broker, call: Call[r.QueryAssignment]) -> Answer[NoFields]:
    queues = await broker.assignments.of(QueryAssignmentRequestBody.decode(call.body))
    assigned = None if queues is None else tuple(MessageQueueAssignment(queue) for queue in queues)
    return Answer(NoFields(), QueryAssignmentResponseBody(assigned).encode())


@handles(r.GetAllMessageRequestMode)
async def get_all_message_request_modes(broker: Broker, call: Call[r.GetAllMessageRequestMode]) -> Answer[NoFields]:
    """No group has been told to pop."""
    return Answer(NoFields(), MessageRequestModeSerializeWrapper().encode())
