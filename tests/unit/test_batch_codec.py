"""Batches as clients send them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol.message import encode_properties
from rmq_core.protocol.record import BatchRecord, decode_batch, encode_batch

batches = st.lists(
    st.builds(BatchRecord, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)),
    max_size=5,
)

EXAMPLE = bytes.fromhex(
    "00000037000000000000000000000000000000026869001f4b455953016b31206b32025741495401747275650254414753015461674102"
)


def test_the_batch_of_the_vector() -> None:
    """Both directions."""
    properties = encode_properties({"KEYS": "k1 k2", "WAIT": "true", "TAGS": "TagA"})
    assert decode_batch(EXAMPLE) == [BatchRecord(0, b"hi", properties)]
    assert encode_batch([BatchRecord(0, b"hi", properties)]) == EXAMPLE


@given(batches)
def test_batches_survive_the_round_trip(records: list[BatchRecord]) -> None:
    """Empty batches, empty bodies, any bytes."""
    encoded = encode_batch(records)
    assert decode_batch(encoded) == records
    assert decode_batch(memoryview(encoded)) == records


def test_a_batch_cut_anywhere_is_refused() -> None:
    """Between its messages it is a shorter batch, elsewhere an error."""
    whole = EXAMPLE * 2
    for size in range(len(whole)):
        if size % len(EXAMPLE) == 0:
            assert len(decode_batch(whole[:size])) == size // len(EXAMPLE)
        else:
            with pytest.raises(RemoteProtocolError):
                decode_batch(whole[:size])


@given(batches.filter(bool), st.integers(0), st.integers(1, 255), st.binary(max_size=60))
def test_damaged_batches_give_a_value_or_the_named_error(
    records: list[BatchRecord], where: int, change: int, noise: bytes
) -> None:
    """One changed byte, and bytes that never were a batch."""
    damaged = bytearray(encode_batch(records))
    damaged[where % len(damaged)] ^= change
    for candidate in (damaged, noise):
        with contextlib.suppress(RemoteProtocolError):
            decode_batch(candidate)


@pytest.mark.parametrize(("position", "value"), [(0, "00000038"), (16, "ffffffff"), (16, "7fffffff"), (22, "ffff")])
def test_lengths_that_lead_elsewhere_are_refused(position: int, value: str) -> None:
    """A size one too large, negative lengths, and a body of two gigabytes."""
    damaged = bytearray(EXAMPLE)
    damaged[position : position + len(value) // 2] = bytes.fromhex(value)
    with pytest.raises(RemoteProtocolError):
        decode_batch(damaged)


@pytest.mark.parametrize("record", [BatchRecord(2**31, b"", b""), BatchRecord(0, b"", bytes(32768))])
def test_what_does_not_fit_is_not_written(record: BatchRecord) -> None:
    """A flag out of range, properties beyond 16 bits."""
    with pytest.raises(LocalProtocolError):
        encode_batch([record])
