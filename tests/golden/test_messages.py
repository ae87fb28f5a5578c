"""Messages that Apache's programs sent and stored, as they were recorded."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_core.protocol import acl
from rmq_core.protocol.compression import decompress_body
from rmq_core.protocol.message import decode_properties, encode_properties, find_property
from rmq_core.protocol.message_id import decode_offset_message_id, decode_unique_key
from rmq_core.protocol.record import (
    RecordCheck,
    check_record,
    decode_batch,
    decode_pull_body,
    encode_batch,
    encode_record,
)
from support.golden import Exchange, exchanges

# Requests and answers whose body is stored records.
ANSWERS_WITH_RECORDS = {11, 12, 33, 361, 200050, 200052}
REQUESTS_WITH_RECORDS = {39, 309}
SEND_BATCH = 320

RECORDED_SECRET_KEY = "12345678"


def bodies_with_records() -> Iterator[tuple[Exchange, bytes]]:
    for exchange in exchanges():
        if exchange.code in REQUESTS_WITH_RECORDS and exchange.request.body:
            yield exchange, exchange.request.body
        answer = exchange.response
        if (
            exchange.code in ANSWERS_WITH_RECORDS
            and answer is not None
            and answer.header["code"] == 0
            and answer.body
        ):
            yield exchange, answer.body


def test_every_recorded_record_is_encoded_as_apache_wrote_it() -> None:
    """Decoded, checked, and written again byte for byte, from pulls, queries, views, POP and check-backs."""
    seen: dict[int, int] = {}
    for exchange, body in bodies_with_records():
        records = decode_pull_body(body, verify_crc=True)
        assert b"".join(map(encode_record, records)) == body, exchange
        assert check_record(body) == RecordCheck(records[0].size, True), exchange
        seen[exchange.code] = seen.get(exchange.code, 0) + len(records)
    assert seen.keys() == ANSWERS_WITH_RECORDS | REQUESTS_WITH_RECORDS
    assert sum(seen.values()) > 500


def test_every_recorded_record_has_properties_we_read_and_write() -> None:
    """Each value by its name alone as in the whole map; written again, the map is the same."""
    for exchange, body in bodies_with_records():
        for record in decode_pull_body(body):
            properties = record.properties
            assert properties, exchange
            assert decode_properties(encode_properties(properties)) == properties, exchange
            for name, value in properties.items():
                assert find_property(record.property_bytes, name.encode()) == value.encode(), exchange


def test_every_recorded_compressed_body_is_inflated() -> None:
    """Whatever client compressed it."""
    compressed = [r for _, body in bodies_with_records() for r in decode_pull_body(body) if r.sys_flag & 1]
    assert compressed
    for record in compressed:
        assert len(decompress_body(record.body, record.sys_flag)) > len(record.body)


def test_every_recorded_unique_key_tells_when_its_message_was_born() -> None:
    """Java's and Go's; the recording machine ran on UTC. A resent message is born after its key was made."""
    seen = 0
    for exchange, body in bodies_with_records():
        for record in decode_pull_body(body):
            key = find_property(record.property_bytes, b"UNIQ_KEY")
            decoded = key and decode_unique_key(key.decode(), near_ms=record.store_time_ms)
            if decoded:
                assert 0 <= record.store_time_ms - decoded.time_ms < 600_000, exchange
                seen += 1
    assert seen > 500


def test_every_recorded_batch_is_encoded_as_its_client_wrote_it() -> None:
    """Java's clients of 4.9 and 5.x, and Go's."""
    seen, clients = 0, set()
    for exchange in exchanges():
        # With m=false even this request carries one plain message.
        if exchange.code == SEND_BATCH and (exchange.request.ext or {}).get("m") == "true":
            records = decode_batch(exchange.request.body)
            assert encode_batch(records) == exchange.request.body, exchange
            # Go sends the messages of a batch without any properties.
            if exchange.client.startswith("java"):
                assert all(find_property(record.properties, b"UNIQ_KEY") for record in records), exchange
            seen += len(records)
            clients.add(exchange.client)
    assert seen > 50
    assert {"java-4.9.7", "java-5.3.3", "go-2.1.2"} <= clients


def test_every_recorded_offset_message_id_is_read() -> None:
    """From answers to sends; a batch has one for each message. Replies that are not stored have `0`."""
    seen = 0
    for exchange in exchanges():
        answer = exchange.response
        if exchange.code in (10, 310, 320) and answer is not None and "msgId" in (answer.ext or {}):
            for text in (answer.ext or {})["msgId"].split(","):
                identity = decode_offset_message_id(text)
                assert str(identity) == text
                assert identity.host == "127.0.0.1"
                seen += 1
    assert seen > 500


def test_every_recorded_signature_is_judged_as_apache_judged_it() -> None:
    """Those that brokers refused as wrong must fail here, and all others verify."""
    verified = refused = 0
    for exchange in exchanges():
        ext = exchange.request.ext or {}
        if acl.SIGNATURE not in ext:
            continue
        remark = "" if exchange.response is None else exchange.response.header.get("remark") or ""
        # Brokers of 4.9 leave out a field that their clients sign, and so refuse a signature that is right.
        is_wrong = "signature failed" in remark and acl.UNIQUE_KEY_QUERY not in ext
        assert acl.verify(ext, exchange.request.body, RECORDED_SECRET_KEY) != is_wrong, exchange
        refused += is_wrong
        verified += not is_wrong
    assert verified > 200
    assert refused > 5
