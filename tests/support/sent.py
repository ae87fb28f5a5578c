"""What has arrived in a topic, read back over the wire queue by queue."""

from __future__ import annotations

import contextlib

from rmq_core.client.options import client_options
from rmq_core.client.queue_client import QueueClient
from rmq_core.protocol.message import MessageQueue
from rmq_core.protocol.record import StoredRecord, decode_pull_body


def arrived(name_server: str, topic: str) -> dict[MessageQueue, list[StoredRecord]]:
    """The messages of each queue, in the order of their offsets."""
    with contextlib.closing(QueueClient(client_options({"name_server": name_server}))) as client:
        queues = client.queues(topic, refresh=True)
        starts, ends = client.min_offsets(queues), client.max_offsets(queues)
        return {
            queue: [
                record
                for piece in client.read(queue, starts[queue], ends[queue])
                for record in decode_pull_body(bytes(piece.buffer), verify_crc=True)
            ]
            for queue in queues
        }


def bodies(name_server: str, topic: str) -> list[bytes]:
    """The bodies of all messages, sorted."""
    return sorted(record.body for records in arrived(name_server, topic).values() for record in records)
