"""What executors of the Spark connector do without a network: decode, read ahead, pool clients."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.queue_client import QueueClient
from rmq_core.errors import ClientClosedError, RemoteProtocolError
from rmq_core.protocol.compression import CompressionType, compress
from rmq_core.protocol.message import MessageQueue, encode_properties
from rmq_core.protocol.record import Host, StoredRecord, encode_record
from rmq_spark.connections import ClientPool
from rmq_spark.options import Scope, Settings, parse
from rmq_spark.planner import QueueRange
from rmq_spark.queue_reader import BATCH_ROWS, Decoder, ahead, cut

ONLINE = {"nameServer": "127.0.0.1:1", "topic": "T"}
COLUMNS = ("topic", "broker", "queueId", "queueOffset", "body", "tags")


def settings(**options: str) -> Settings:
    return parse({**ONLINE, **options}, Scope.READ)


def record(offset: int, body: bytes, *, topic: str = "T", tags: str | None = None, **fields: Any) -> bytes:
    properties = encode_properties({} if tags is None else {"TAGS": tags})
    given_fields: dict[str, Any] = {
        "topic": topic, "queue_id": 0, "queue_offset": offset, "log_offset": offset * 1000,
        "born_time_ms": 1, "born_host": Host.of("127.0.0.1", 1), "store_time_ms": 2,
        "store_host": Host.of("127.0.0.1", 2), "body": body, "property_bytes": properties,
        **fields,
    }  # fmt: skip
    return encode_record(StoredRecord(**given_fields))


def decoded(decoder: Decoder, pieces: list[tuple[QueueRange, bytes]]) -> list[dict[str, Any]]:
    batches = [batch for source, piece in pieces for batch in decoder.add(source, memoryview(piece))]
    return [row for batch in [*batches, *decoder.finish()] for row in batch.to_pylist()]


def source(broker: str = "a") -> QueueRange:
    return QueueRange(MessageQueue("T", broker, 0), 0, 100)


# Decoding


def test_buffers_of_two_brokers_keep_their_names() -> None:
    """They are put together as long as they are of one broker; the column is one value for a whole batch."""
    pieces = [(source("a"), record(0, b"1")), (source("a"), record(1, b"2")), (source("b"), record(0, b"3"))]
    rows = decoded(Decoder(settings(), COLUMNS), pieces)
    assert [(row["broker"], row["body"]) for row in rows] == [("a", b"1"), ("a", b"2"), ("b", b"3")]


def test_small_answers_become_one_batch() -> None:
    """Brokers that give 32 messages at a time would make a batch of each."""
    decoder = Decoder(settings(), COLUMNS)
    one = source()
    batches = [batch for number in range(100) for batch in decoder.add(one, memoryview(record(number, b"x" * 50)))]
    batches += decoder.finish()
    assert [batch.num_rows for batch in batches] == [100]


def test_an_empty_body_is_an_empty_binary_and_not_null() -> None:
    """C164."""
    assert [row["body"] for row in decoded(Decoder(settings(), COLUMNS), [(source(), record(0, b""))])] == [b""]


def test_a_tag_that_only_hashes_alike_is_dropped() -> None:
    """ "Aa" and "BB" have one hash in Java; the column of tags does not show where it is not asked for."""
    pieces = [(source(), record(0, b"1", tags="Aa") + record(1, b"2", tags="BB") + record(2, b"3"))]
    rows = decoded(Decoder(settings(tags="Aa || C"), ("body",)), pieces)
    assert rows == [{"body": b"1"}]


def test_topics_lose_their_namespace_and_keep_everything_else() -> None:
    """Rows show the names that the user wrote."""
    pieces = [(source(), record(0, b"1", topic="ns%T") + record(1, b"2", topic="%DLQ%ns%g"))]
    rows = decoded(Decoder(settings(namespace="ns"), ("body", "topic")), pieces)
    assert rows == [{"body": b"1", "topic": "T"}, {"body": b"2", "topic": "%DLQ%g"}]


def test_compressed_bodies_are_inflated_in_small_lots() -> None:
    """Eight bodies of a megabyte are a kilobyte each as stored: in one batch they would be eight megabytes."""
    kind = CompressionType.ZLIB
    body = bytes(range(256)) * 2048
    stored = compress(body, kind)
    noise = np.random.default_rng(1).bytes(200_000)
    packed = compress(noise, kind)
    piece = b"".join(
        record(number, each, sys_flag=kind.sys_flag) for number, each in enumerate([stored, packed] * 4)
    )
    decoder = Decoder(settings(), ("body",))
    batches = [*decoder.add(source(), memoryview(piece)), *decoder.finish()]
    assert [row for batch in batches for row in batch.column("body").to_pylist()] == [body, noise] * 4
    assert len(batches) >= 4


def test_bytes_that_are_no_records_are_the_brokers_fault_by_name() -> None:
    """A cut record, and rubbish behind a good one."""
    good = record(0, b"1")
    for piece in (good + good[:-1], good + b"rubbish" * 20, b"\0" * 200):
        with pytest.raises(RemoteProtocolError, match="MessageQueue"):
            decoded(Decoder(settings(), COLUMNS), [(source(), piece)])


@given(st.lists(st.integers(1, 5000), max_size=60), st.integers(1, 10_000))
def test_lots_cover_all_rows_within_their_limits(sizes: list[int], size_max: int) -> None:
    """Each lot is as large as may be, or one row."""
    array = np.array(sizes, np.int32)
    lots = list(cut(array, size_max))
    assert [low for low, _ in lots] + [len(sizes)] == [0, *(high for _, high in lots)]
    for low, high in lots:
        assert high - low <= BATCH_ROWS
        assert high - low == 1 or sum(sizes[low:high]) <= size_max
        if high < len(sizes):
            assert sum(sizes[low : high + 1]) > size_max


# Reading ahead


def batch(value: int, rows: int = 10) -> pa.RecordBatch:
    return pa.record_batch([pa.array([value] * rows, pa.int64())], names=["value"])


def test_batches_come_in_order_and_errors_behind_them() -> None:
    """The error must not overtake what was good."""

    def made() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        yield batch(2)
        raise OSError("broken")

    taken = ahead(made(), bytes_max=1 << 20)
    assert [next(taken).column(0)[0].as_py() for _ in range(2)] == [1, 2]
    with pytest.raises(OSError, match="broken"):
        next(taken)
    assert list(ahead(iter([]), bytes_max=1)) == []


def test_no_more_is_made_than_fits() -> None:
    """A reader that takes nothing must stop the one that makes; a batch above the limit still passes alone."""
    made: list[int] = []
    taken: list[int] = []
    third = threading.Event()
    outstanding: list[int] = []

    def make() -> Iterator[pa.RecordBatch]:
        for number in range(100):
            made.append(number)
            outstanding.append(len(made) - len(taken))
            if number == 3:
                third.set()
            yield batch(number)

    source_of = ahead(make(), bytes_max=2 * batch(0).nbytes)
    taken.append(next(source_of).column(0)[0].as_py())
    assert third.wait(10)  # two are ready, and one waits for its place
    taken.extend(each.column(0)[0].as_py() for each in source_of)
    assert taken == list(range(100))
    assert max(outstanding) <= 4
    assert len(list(ahead((batch(number) for number in range(5)), bytes_max=1))) == 5


def test_who_stops_early_ends_the_thread_and_what_it_reads() -> None:
    """take() and LIMIT close the iterator; the generator behind it holds a connection and must end."""
    ended = threading.Event()

    def make() -> Iterator[pa.RecordBatch]:
        try:
            for number in range(1000):
                yield batch(number)
        finally:
            ended.set()

    taken = ahead(make(), bytes_max=1)
    next(taken)
    taken.close()  # type: ignore[attr-defined]
    assert ended.wait(10)
    ended.clear()
    forgotten = ahead(make(), bytes_max=1)
    next(forgotten)
    reference = weakref.ref(forgotten)
    del forgotten
    gc.collect()
    assert reference() is None
    assert ended.wait(10)


# Connections


class Made:
    """Makes clients that never connect, and remembers them."""

    def __init__(self) -> None:
        self.clients: list[QueueClient] = []

    def __call__(self, given_settings: Settings) -> QueueClient:
        client = QueueClient(given_settings.client_options())
        self.clients.append(client)
        return client


def test_equal_settings_share_a_client_and_others_do_not() -> None:
    """C200, C201, C205: used by two at once, by nobody, and again."""
    made = Made()
    pool = ClientPool(made)
    with pool.client(settings()) as one, pool.client(settings(minPartitions="5")) as other:
        assert one is other
    with pool.client(settings()) as again:
        assert again is one
    with (
        pool.client(settings(accessKey="a", secretKey="b")) as signed,
        pool.client(settings(accessKey="a", secretKey="c")) as renewed,
    ):
        assert len({id(one), id(signed), id(renewed)}) == 3
    assert len(made.clients) == 3


def test_the_pool_is_soft_at_its_capacity() -> None:
    """C204: users beyond it are served; who is idle longest makes place."""
    made = Made()
    pool = ClientPool(made, capacity=2)
    with contextlib.ExitStack() as users:
        for namespace in "abc":
            users.enter_context(pool.client(settings(namespace=namespace)))
        assert len(pool) == 3
    with pool.client(settings(namespace="d")):
        assert len(pool) == 2
    with pool.client(settings(namespace="c")):
        assert len(made.clients) == 4
    pool.close()
    pool.close()
    assert len(pool) == 0


class Stubborn(QueueClient):
    """A client that cannot be closed."""

    def close(self) -> None:
        raise OSError("it will not close")


def test_closing_the_pool_reports_errors_and_closes_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """C208: the first of two clients raises; an interpreter that ends must not show a traceback."""
    made = Made()
    pool = ClientPool(lambda given: Stubborn(given.client_options()) if given.namespace else made(given))
    for each in (settings(namespace="a"), settings()):
        with pool.client(each):
            pass
    with caplog.at_level("WARNING"):
        pool.close()
    assert "it will not close" in caplog.text
    assert len(pool) == 0
    with pytest.raises(ClientClosedError):
        made.clients[0].topics()


def test_many_threads_use_one_client() -> None:
    """C203: 100 threads, 500 uses."""
    made = Made()
    pool = ClientPool(made)

    def use() -> None:
        for _ in range(5):
            with pool.client(settings()):
                pass

    threads = [threading.Thread(target=use) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made.clients), len(pool)) == (1, 1)
