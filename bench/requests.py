"""A send request as Java clients write it."""

from __future__ import annotations

from rmq_core.protocol.command import Command, encode_command
from rmq_core.protocol.requests import SendMessageV2

PROPERTIES = "UNIQ_KEY\x017F000001123418B4AAC2123456780000\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01k1\x02"


def send_frame(body: bytes = b"x" * 128, *, queue_id: int = 1, properties: str = PROPERTIES) -> bytes:
    request = SendMessageV2(
        producer_group="PG",
        topic="TopicTest",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    return encode_command(Command(request.code, opaque=1, ext=request.to_ext(), body=body))
