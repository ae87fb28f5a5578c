"""Decisions about half messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_core.broker.transactions import COMMIT, ROLLBACK
from rmq_core.errors import BrokerError
from rmq_core.net.calls import DONE, Answer, Call
from rmq_core.net.dispatch import handles
from rmq_core.protocol.codes import ResponseCode
from rmq_core.protocol.message_id import decode_offset_message_id
from rmq_core.protocol.request import NoFields
from rmq_core.protocol.requests import EndTransaction, ResumeCheckHalfMessage

if TYPE_CHECKING:
    from rmq_core.broker.broker import Broker


@handles(EndTransaction)
async def end_transaction(broker: Broker, call: Call[EndTransaction]) -> Answer[NoFields] | None:
    """Commit or roll back; a producer that does not know yet gets no answer, and is asked later."""
    if not broker.is_master:
        raise BrokerError(ResponseCode.SLAVE_NOT_AVAILABLE, "transactions are ended on the master")
    if call.header.commit_or_rollback not in (COMMIT, ROLLBACK):
        return None
    await broker.transactions.end(call.header)
    return DONE


@handles(ResumeCheckHalfMessage)
async def resume_check_half_message(broker: Broker, call: Call[ResumeCheckHalfMessage]) -> Answer[NoFields]:
    """Have a half message asked about again that was given up."""
    if not broker.is_master:
        raise BrokerError(ResponseCode.SLAVE_NOT_AVAILABLE, "half messages are asked about by the master")
    await broker.transactions.resume(decode_offset_message_id(call.header.msg_id or "").log_offset)
    return DONE
