"""The quick ways to read a queue give what the careful one gives."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.store.queue_reader import ORDINARY_COUNT_MAX, MessageFilter
from support.stores import HOST, open_store

# Judges every entry and wants them all: who asks with it is served the careful way.
CAREFUL = MessageFilter(by_entry=lambda code, unit: True)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300)), min_size=1, max_size=60),
    st.integers(0, 40),
    st.integers(1, 40),
    st.integers(100, 5_000),
    st.sampled_from([100, 700, 256 << 10]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_everything_is_found_alike_whichever_way_it_is_looked_for(
    messages: list[tuple[int, int]], offset: int, count_max: int, size_max: int, transfer_bytes: int, written: bool
) -> None:
    """Queues that alternate in files of 4 KiB, with entries in memory or in files, any limits and any offset."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder), max_transfer_bytes_on_message_in_memory=transfer_bytes)
        for queue_id, size in messages:
            store.put("T", queue_id, b"x" * size, b"", born_time_ms=1, born_host=HOST)
        store.end_pass()
        if written:
            store.queues.write_out()
        for queue_id in range(3):
            quick = store.get("T", queue_id, offset, count_max, size_max=size_max)
            careful = store.get("T", queue_id, offset, count_max, size_max=size_max, filter_=CAREFUL)
            assert quick.status is careful.status
            if count_max <= ORDINARY_COUNT_MAX:
                assert b"".join(quick.parts) == b"".join(careful.parts)
                assert (quick.count, quick.size) == (careful.count, careful.size)
                assert (quick.next_offset, quick.suggests_slave) == (careful.next_offset, careful.suggests_slave)
            else:  # it reads on where a file of entries ends
                assert b"".join(quick.parts).startswith(b"".join(careful.parts))
        store.close()
