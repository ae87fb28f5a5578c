"""Topic configuration, and what a broker tells a name server about it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from rmq_core.errors import RemoteProtocolError
from rmq_core.protocol import fastjson
from rmq_core.protocol.body import Body
from rmq_core.protocol.codes import V5_0_0
from rmq_core.protocol.fields import Int32

_INT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """Counts the changes of a table; two tables of one sender are equal where their versions are."""

    timestamp: int = 0
    counter: int = 0
    state_version: int | None = None


class TopicFilterType(StrEnum):
    """How many tags a message of a topic may have."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


@dataclass(frozen=True, slots=True)
class TopicConfig(Body):
    """One topic as a broker keeps it."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LogicQueueMappingItem(Body):
    """A stretch of a static topic's logical queue on one broker."""

    gen: Int32 = 0
    queue_id: Int32 = 0
    bname: str | None = None
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


@dataclass(frozen=True, slots=True)
class TopicQueueMappingInfo(Body):
    """Which logical queues of a static topic a broker holds."""

    topic: str | None = None
    bname: str | None = None
    scope: str | None = None
    epoch: int = 0
    total_queues: Int32 = 0
    dirty: bool | None = None
    curr_id_map: dict[int, Int32] | None = None


@dataclass(frozen=True, slots=True)
class TopicQueueMappingDetail(Body):
    """TopicQueueMappingInfo with the stretches behind each queue."""

    topic: str | None = None
    bname: str | None = None
    scope: str | None = None
    epoch: int = 0
    total_queues: Int32 = 0
    dirty: bool | None = None
    curr_id_map: dict[int, Int32] | None = None
    hosted_queues: dict[int, tuple[LogicQueueMappingItem, ...]] | None = None


@dataclass(frozen=True, slots=True)
class TopicConfigAndQueueMapping(Body):
    """Answer to GetTopicConfig: a topic, and its mapping where it is a static one."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None
    mapping_detail: TopicQueueMappingDetail | None = None


@dataclass(frozen=True, slots=True)
class TopicConfigSerializeWrapper(Body):
    """All topics of a broker; the mapping fields come with 5.0."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion | None = None
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] | None = None
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] | None = None


@dataclass(frozen=True, slots=True)
class CreateTopicListRequestBody(Body):
    """Topics to create; keys of attributes carry the sign of the change."""

    topic_config_list: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(Body):
    """What a broker registers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = TopicConfigSerializeWrapper()
    filter_server_list: tuple[str, ...] | None = None

    def encode_compressed(self, *, version: int) -> bytes:
        """The zlib form; senders from 5.0 on add attributes and the queue mappings."""
        wrapper = self.topic_config_serialize_wrapper
        parts = [_sized((wrapper.data_version or DataVersion()).encode())]
        parts.append(_INT.pack(len(wrapper.topic_config_table)))
        parts += [_sized(_config_line(config, version).encode()) for config in wrapper.topic_config_table.values()]
        parts.append(_sized(orjson.dumps(self.filter_server_list or ())))
        if version >= V5_0_0:
            mappings = wrapper.topic_queue_mapping_info_map or {}
            parts.append(_INT.pack(len(mappings)))
            parts += [_sized(mapping.encode()) for mapping in mappings.values()]
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode_compressed(cls, data: bytes, *, version: int, size_max: int) -> RegisterBrokerBody:
        """Read the zlib form, never inflating to more than size_max. Raises RemoteProtocolError."""
        reader = _Sections(_inflate(data, size_max))
        data_version = DataVersion.decode(reader.section())
        configs = [_parse_config_line(reader.section().decode(errors="replace")) for _ in range(reader.count())]
        filter_servers = cls.from_json({"filterServerList": fastjson.loads(reader.section())}).filter_server_list
        mappings = None
        if version >= V5_0_0 and not reader.at_end:
            infos = [TopicQueueMappingInfo.decode(reader.section()) for _ in range(reader.count())]
            mappings = {str(info.topic): info for info in infos}
        wrapper = TopicConfigSerializeWrapper(
            {config.topic_name: config for config in configs},
            data_version,
            topic_queue_mapping_info_map=mappings,
        )
        return cls(wrapper, filter_servers)


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _config_line(config: TopicConfig, version: int) -> str:
    queues = f"{config.read_queue_nums} {config.write_queue_nums}"
    line = f"{config.topic_name} {queues} {config.perm} {config.topic_filter_type.value}"
    if version >= V5_0_0:
        line += " " + orjson.dumps(config.attributes or {}).decode()
    return line


def _parse_config_line(line: str) -> TopicConfig:
    name, *values = line.split(" ", 5)
    if len(values) < 4:
        raise RemoteProtocolError(f"{line[:80]!r} is not a topic's configuration")
    config = dict(zip(("readQueueNums", "writeQueueNums", "perm", "topicFilterType"), values, strict=False))
    # What follows the filter type may be something else than attributes; Java ignores it then.
    attributes = fastjson.loads(values[4].encode()) if values[4:] and values[4].startswith("{") else None
    return TopicConfig.from_json({**config, "topicName": name, "attributes": attributes})


def _inflate(data: bytes, size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        # One more than allowed: a length of zero would mean no limit, and the trailer may need room.
        inflated = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"the body is not a zlib stream: {error}") from None
    if len(inflated) > size_max:
        raise RemoteProtocolError(f"the body inflates to more than {size_max} bytes")
    if not inflater.eof:
        raise RemoteProtocolError("the zlib stream ends too early")
    return inflated


class _Sections:
    """Reads counts and length-prefixed parts, checking each length before use."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._position >= len(self._data)

    def count(self) -> int:
        if len(self._data) - self._position < 4:
            raise RemoteProtocolError("the compressed body ends too early")
        (number,) = _INT.unpack_from(self._data, self._position)
        self._position += 4
        # Every part takes at least its length field, so a larger count cannot be true.
        if not 0 <= number <= len(self._data):
            raise RemoteProtocolError(f"the compressed body announces {number} parts")
        return int(number)

    def section(self) -> bytes:
        size = self.count()
        section = self._data[self._position : self._position + size]
        if len(section) < size:
            raise RemoteProtocolError("the compressed body ends too early")
        self._position += size
        return section
