"""A frame and what is in it.

Frame    int32 length of what follows, int32 (encoding << 24 | header length), header, body.
Header   JSON text or the compact binary form; each answer uses the encoding of its request.
Limits   The first four bytes are checked before anything is kept: an announced length above the limit, or a
         header longer than its frame, ends the connection. Nothing here allocates by an unchecked length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import orjson

from rmq_core.errors import LocalProtocolError, RemoteProtocolError
from rmq_core.protocol import fastjson
from rmq_core.protocol.codes import CURRENT_VERSION, Language
from rmq_core.protocol.fields import check_range, read_int

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""Bytes of a whole frame, its length field included, as Apache's decoder counts them."""

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

_PREFIX = struct.Struct(">iI")
_BINARY_FIXED = struct.Struct(">hBhiii")
_LENGTH = struct.Struct(">I")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_HEADER_LENGTH_MASK = 0xFFFFFF

# The binary header carries 16 bits of the code; these are what is left of the POP family's codes.
_BINARY_ALIASES = {code & 0xFFFF: code for code in (*range(200050, 200057), 200151)}


class HeaderEncoding(IntEnum):
    """How the header of a frame is written."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)
class Command:
    """One request or response as it crosses the wire, header fields still text."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    language: Language = Language.JAVA
    version: int = CURRENT_VERSION
    encoding: HeaderEncoding = HeaderEncoding.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)


def encode_command(command: Command) -> bytes:
    """The whole frame. Raises LocalProtocolError where the protocol cannot carry the command."""
    is_json = command.encoding is HeaderEncoding.JSON
    header = _encode_json(command) if is_json else _encode_binary(command)
    return frame_prefix(header, len(command.body), command.encoding) + header + command.body


def frame_prefix(header: bytes, body_size: int, encoding: HeaderEncoding) -> bytes:
    """The eight bytes in front of a header; the body may follow in pieces of its own."""
    header_size = len(header)
    if header_size > _HEADER_LENGTH_MASK or 8 + header_size + body_size > FRAME_SIZE_MAX:
        raise LocalProtocolError(
            f"a frame of {8 + header_size + body_size} bytes is over the limit of {FRAME_SIZE_MAX}"
        )
    return _PREFIX.pack(4 + header_size + body_size, encoding << 24 | header_size)


def decode_command(frame: bytes | memoryview) -> Command:
    """The command in one whole frame, as FrameDecoder hands it out. Raises RemoteProtocolError."""
    header_end, encoding = _header_of(frame)
    return _decode_header(bytes(frame[8:header_end]), bytes(frame[header_end:]), encoding)


def decode_head(frame: bytes | memoryview) -> tuple[Command, int]:
    """The same without the body, which begins where the number says: large ones need not be copied."""
    header_end, encoding = _header_of(frame)
    return _decode_header(bytes(frame[8:header_end]), b"", encoding), header_end


def _header_of(frame: bytes | memoryview) -> tuple[int, int]:
    if len(frame) < 8:
        raise RemoteProtocolError("a frame has at least eight bytes")
    length, word = _PREFIX.unpack_from(frame)
    header_end = 8 + (word & _HEADER_LENGTH_MASK)
    if length + 4 != len(frame) or header_end > len(frame):
        raise RemoteProtocolError(f"a header of {header_end - 8} bytes in a frame of {len(frame)}")
    return header_end, word >> 24


def _decode_header(header: bytes, body: bytes, encoding: int) -> Command:
    if encoding == HeaderEncoding.JSON:
        return _decode_json(header, body)
    if encoding == HeaderEncoding.ROCKETMQ:
        return _decode_binary(header, body)
    raise RemoteProtocolError(f"unknown header encoding {encoding}")


def _encode_json(command: Command) -> bytes:
    header: dict[str, Any] = {"code": int(command.code)}
    if command.ext is not None:
        header["extFields"] = command.ext
    header["flag"] = command.flag
    header["language"] = command.language.name
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    try:
        return orjson.dumps(header)
    except TypeError as error:
        raise LocalProtocolError(f"the header cannot be written as JSON: {error}") from None


def _decode_json(header: bytes, body: bytes) -> Command:
    value = fastjson.loads(header)
    if not isinstance(value, dict):
        raise RemoteProtocolError("a JSON header is an object")
    return command_of(value, body, HeaderEncoding.JSON)


def command_of(value: Mapping[str, Any], body: bytes, encoding: HeaderEncoding) -> Command:
    """The command whose header has been parsed already. Raises RemoteProtocolError."""
    ext = value.get("extFields")
    remark = value.get("remark")
    return Command(
        code=_int32(value.get("code")),
        opaque=_int32(value.get("opaque")),
        flag=_int32(value.get("flag")),
        remark=None if remark is None else _text(remark),
        ext=None if ext is None else text_fields(ext),
        body=body,
        language=_language(value.get("language")),
        version=_int32(value.get("version")),
        encoding=encoding,
    )


def text_fields(ext: Any) -> dict[str, str]:
    """Header fields as text: clients write numbers and booleans too, and Java makes text of them."""
    if not isinstance(ext, dict):
        raise RemoteProtocolError("extFields is an object")
    return {key: value if type(value) is str else _text(value) for key, value in ext.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return orjson.dumps(value).decode()


def _int32(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        return read_int(value, bits=32)
    if isinstance(value, int):
        return check_range(int(value), bits=32)
    raise RemoteProtocolError(f"{str(value)[:40]!r} is not a number")


def _language(value: Any) -> Language:
    if isinstance(value, str):
        return Language.__members__.get(value.upper(), Language.OTHER)
    if isinstance(value, int) and 0 <= value <= Language.NODE_JS:
        return Language(value)
    return Language.OTHER


def _encode_binary(command: Command) -> bytes:
    code = int(command.code)
    if not -32768 <= code <= 32767:
        if _BINARY_ALIASES.get(code & 0xFFFF) != code:
            raise LocalProtocolError(f"the binary header cannot carry the code {code}")
        code &= 0xFFFF
    try:
        remark = (command.remark or "").encode()
        fields = _encode_fields(command.ext or {})
        fixed = _BINARY_FIXED.pack(
            code, command.language, command.version, command.opaque, command.flag, len(remark)
        )
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"the binary header cannot carry the command: {error}") from None
    return b"".join((fixed, remark, _INT.pack(len(fields)), fields))


def _encode_fields(ext: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for key, value in ext.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        if len(key_bytes) > 32767:
            raise LocalProtocolError(f"the field name {key[:40]!r}… is too long")
        parts += (_SHORT.pack(len(key_bytes)), key_bytes, _INT.pack(len(value_bytes)), value_bytes)
    return b"".join(parts)


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size
        remark, position = _take(header, position, remark_size)
        (fields_size,) = _INT.unpack_from(header, position)
        fields, position = _take(header, position + 4, fields_size)
        if not flag & RESPONSE_FLAG:
            code = _BINARY_ALIASES.get(code, code)
        return Command(
            code=code,
            opaque=opaque,
            flag=flag,
            remark=remark.decode() if remark else None,
            ext=dict(_decode_fields(fields)) if fields else None,
            body=body,
            language=_language(language),
            version=version,
            encoding=HeaderEncoding.ROCKETMQ,
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a broken binary header: {error}") from None


def _decode_fields(fields: bytes) -> Iterator[tuple[str, str]]:
    """Names and values; a name that repeats counts with its last value, as signed 4.9 requests have it."""
    position = 0
    while position < len(fields):
        (key_size,) = _SHORT.unpack_from(fields, position)
        key, position = _take(fields, position + 2, key_size)
        (value_size,) = _INT.unpack_from(fields, position)
        value, position = _take(fields, position + 4, value_size)
        if key:
            yield key.decode(), value.decode()


def _take(data: bytes, position: int, size: int) -> tuple[bytes, int]:
    end = position + size
    if size < 0 or end > len(data):
        raise RemoteProtocolError(f"{size} bytes announced, {len(data) - position} there")
    return data[position:end], end


class FrameDecoder:
    """Cuts a stream of bytes into frames. Sans-IO: feed() what arrived, then take next() or whole().

    An unfinished frame is kept as a list of chunks and joined once all its bytes are there: appending to one
    growing buffer would copy a large frame again for every chunk of it.
    """

    __slots__ = ("_chunks", "_frame_size_max", "_missing", "_position", "_ready", "pending_size")

    def __init__(self, *, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frame_size_max = frame_size_max
        self._ready = b""
        self._position = 0
        self._chunks: list[bytes] = []
        self._missing = 0
        self.pending_size = 0
        """Bytes of an unfinished frame that are being kept."""

    def feed(self, data: bytes) -> None:
        """Take bytes as they arrived. Raises RemoteProtocolError on a length that no frame has."""
        if self._chunks:
            self._chunks.append(data)
            self.pending_size += len(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self.pending_size = 0
        end = self._end_of_whole_frames(data)
        if end < len(data):
            self._chunks.append(data[end:] if end else data)
            self.pending_size = len(data) - end
            data = data[:end]
        self._ready = self.whole() + data if self._ready else data

    def _end_of_whole_frames(self, data: bytes) -> int:
        position, size, unpack = 0, len(data), _LENGTH.unpack_from
        while True:
            if size - position < 4:
                self._missing = 4 - (size - position)
                return position
            (length,) = unpack(data, position)
            if not 4 <= length <= self._frame_size_max - 4:
                raise RemoteProtocolError(
                    f"a frame of {length} bytes; the limit is {self._frame_size_max - 4}, the least 4"
                )
            end = position + 4 + length
            if end > size:
                self._missing = end - size
                return position
            position = end

    def next(self) -> bytes | None:
        """The next whole frame with its length field, or None: feed more."""
        ready, start = self._ready, self._position
        if not ready:
            return None
        # A position instead of a shorter buffer: many small frames in one chunk would copy the rest for each.
        end = start + 4 + int.from_bytes(ready[start : start + 4], "big")
        if end == len(ready):
            self._ready, self._position = b"", 0
        else:
            self._position = end
        return ready[start:end]

    def whole(self) -> bytes:
        """All whole frames in one buffer, empty where none is complete."""
        ready = self._ready[self._position :]
        self._ready, self._position = b"", 0
        return ready
