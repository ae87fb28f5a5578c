"""What is raised here can be caught in another process: pools of processes and Spark send exceptions pickled."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import rmq_core
from rmq_core import Message, MessageQueue, errors
from rmq_core.client.admin_base import SomeBrokersFailedError
from rmq_core.client.send_results import Attempt, BatchSendError, SendError, SendResult, SendStatus
from rmq_core.integrations.conversion import ConversionError

QUEUE = MessageQueue("Orders", "broker-a", 0)
REFUSED = errors.BrokerError(14, "the service is not available")
TRIED = (Attempt("broker-a", "127.0.0.1:10911", REFUSED, 3.5), Attempt("b", "c", errors.ConnectError("away"), 1.0))

RAISED: list[errors.RocketMQError] = [
    REFUSED,
    errors.CorruptRecordError(4096, "bad CRC"),
    errors.OffsetGoneError(QUEUE, 3, 7, max_offset=9),
    errors.ConfigError("listenPort", "x", "not a number"),
    errors.CallTimeoutError("no answer in 3000 ms"),
    errors.ConnectError("cannot connect"),
    errors.ForkedError("another process"),
    ConversionError("no date"),
    SendError("Orders", "7F00", TRIED),
    BatchSendError([SendResult(SendStatus.OK, "7F00", "7F01", QUEUE, 3)], [Message("Orders", b"x")], "away"),
    SomeBrokersFailedError({"broker-a": REFUSED}, {"broker-b": 1}),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_reaches_another_process_as_it_was(error: errors.RocketMQError) -> None:
    """Pickles it: kind, text and everything it tells are the same."""
    error.add_note("while testing")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__.keys() == error.__dict__.keys()
    assert repr(again.__dict__) == repr(error.__dict__)


@pytest.mark.parametrize(
    "client",
    [rmq_core.Producer("PG"), rmq_core.PushConsumer("CG"), rmq_core.LitePullConsumer("CG"), rmq_core.Admin()],
    ids=lambda client: type(client).__name__,
)
def test_a_client_cannot_and_says_what_to_do(client: Any) -> None:
    """Pickles clients that were never opened."""
    with pytest.raises(
        TypeError, match=f"{type(client).__name__} cannot be sent to another process; make one there"
    ):
        pickle.dumps(client)
