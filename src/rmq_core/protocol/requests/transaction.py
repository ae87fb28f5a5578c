"""Half messages, their decision and the broker's questions about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmq_core.protocol.fields import Int32
from rmq_core.protocol.request import NoFields, Request


@dataclass(frozen=True, slots=True)
class EndTransaction(Request[NoFields]):
    """Decide a half message: commit_or_rollback is 8, 12, or 0 for unknown."""

    code: ClassVar = 37
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class CheckTransactionState(Request[NoFields]):
    """Asked of a producer: what became of this half message? The body is its record."""

    code: ClassVar = 39
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeCheckHalfMessage(Request[NoFields]):
    """Ask again about a half message that was given up."""

    code: ClassVar = 323
    msg_id: str | None = None
    topic: str | None = None
