"""Buffers of records for tests: good ones of every kind, and what is left of them after damage."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from rmq_core.columnar import kernels
from rmq_core.protocol import record as r

WAYS = ("numpy", "compiled")
NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"INNER_NUM", b"INNER_MULTI_DISPATCH")

_ints = st.integers(-(2**31), 2**31 - 1)
_longs = st.integers(-(2**63), 2**63 - 1)
_times = st.integers(1_600_000_000_000, 1_800_000_000_000) | _longs
_hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
_short_texts = st.text(max_size=9).map(str.encode)
_names = (
    st.sampled_from(NAMES)
    | st.sampled_from((b"INNER_NUN", b"TAGT", b"DELAX", b"INNER_MULTI_DISPATCX", b"a-much-longer-name-of-someone"))
    | _short_texts
    | st.binary(max_size=4)
)
_values = _short_texts | st.binary(max_size=40) | st.text("ab ", max_size=70).map(str.encode)


@contextlib.contextmanager
def using(way: str) -> Iterator[None]:
    """Columns by numpy, or by compiled loops; the test is skipped where there is no numba, or nobody wants it."""
    kernels.unload()
    if way == "compiled":
        if os.environ.get("RMQ_COMPILED") == "0":
            pytest.skip("RMQ_COMPILED=0 keeps the loops off")
        pytest.importorskip("numba", reason="compiled loops need numba")
        assert kernels.load()
    try:
        yield
    finally:
        kernels.unload()


@st.composite
def property_bytes(draw: st.DrawFn) -> bytes:
    """What a record may hold there, mostly pairs."""
    pairs = draw(st.lists(st.tuples(_names, _values), max_size=6))
    joined: bytes = b"".join(b"%b\x01%b\x02" % pair for pair in pairs)
    joined = joined[: len(joined) - draw(st.integers(0, 1))]
    return joined + draw(st.just(b"") | st.binary(max_size=12) | st.just(b"\x02\x01\x01\x02"))


@st.composite
def record_bytes(draw: st.DrawFn, *, log_offset: int | None = None) -> bytes:
    """One whole record: either version, hosts of either kind, compressed or not."""
    body, sys_flag = draw(st.binary(max_size=40)), draw(_ints | st.just(0))
    kind = draw(st.sampled_from(["as it is", "compressed", "not compressed"]))
    if kind == "compressed":
        body, sys_flag = zlib.compress(body), sys_flag & ~0x700 | 1
    elif kind == "not compressed":
        sys_flag &= ~1
    topic = draw(st.sampled_from([b"", b"Orders", b"Payments", b"T" * 130, b"\xff-not-text"]) | _short_texts)
    properties = draw(property_bytes())
    born_host, store_host = draw(_hosts), draw(_hosts)
    size = r.record_size(
        body_size=len(body),
        topic_size=len(topic),
        properties_size=len(properties),
        host_sizes=len(born_host) + len(store_host),
        magic=(magic := draw(st.sampled_from([r.MAGIC_V1, r.MAGIC_V2]))),
    )
    buffer = bytearray(size)
    r.encode_record_into(
        buffer,
        0,
        topic=topic,
        queue_id=draw(_ints),
        queue_offset=draw(_longs),
        log_offset=draw(_longs) if log_offset is None else log_offset,
        body=body,
        properties=properties,
        born_time_ms=draw(_times),
        born_host=born_host,
        store_time_ms=draw(_times),
        store_host=store_host,
        flag=draw(_ints),
        sys_flag=sys_flag,
        reconsume_times=draw(_ints),
        prepared_transaction_offset=draw(_longs),
        magic=magic,
    )
    return bytes(buffer)


def whole_logs() -> st.SearchStrategy[bytes]:
    """Good records, one behind the other."""
    return st.lists(record_bytes(), min_size=1, max_size=6).map(b"".join)


@st.composite
def damaged_logs(draw: st.DrawFn) -> bytes:
    """Records of which some bytes are others, perhaps a blank one behind them, perhaps cut off; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    log = bytearray(draw(whole_logs()))
    if draw(st.booleans()):
        log += r.encode_blank(draw(st.integers(-1, 100))) + bytes(draw(st.integers(0, 92)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(log) - 1))
        log[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    return bytes(log[: draw(st.integers(0, len(log)) | st.just(len(log)))])


def positions_of(log: bytes) -> list[int]:
    """Where the records of a good log are."""
    return [position for position, _ in r.scan_records(log)]
