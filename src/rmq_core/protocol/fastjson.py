"""The JSON dialect that Java peers write and expect.

Java's fastjson writes maps with numeric keys unquoted, `{0:"a"}`, maps keyed by an object with that object
as key, `{{"queueId":0}:5}`, and an object that occurs twice as `{"$ref":"$.path"}`. Here keys are always
text: `0` becomes "0", an object key the compact JSON text of the object.

Reading tries orjson first; the dialect parser runs only where that fails.
Writing is standard JSON, but for RawKeys: a dict whose keys are JSON text already and go out unquoted.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from rmq_core.errors import RemoteProtocolError

DEPTH_MAX = 64
"""How deep containers may nest; Java's bodies reach eight."""

REFERENCES_SIZE_MAX = 1024 * 1024
"""Bytes of JSON that references may add: each may point to others, so a short text can mean a huge one."""

_TOKEN = re.compile(
    rb"""[ \t\r\n]*(?:
        (?P<punctuation>[{}\[\],:])
      | (?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")
      | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_WORDS = {b"true": True, b"false": False, b"null": None, b"NaN": None}


class RawKeys(dict[str, Any]):
    """A JSON object whose keys are written as they are, without quotes."""


def loads(data: bytes | memoryview) -> Any:
    """Parse standard JSON or the dialect. Raises RemoteProtocolError where it is neither."""
    data = bytes(data)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _Parser(data).document()
    if data.count(b"{") + data.count(b"[") > DEPTH_MAX:
        _check_depth(value)
    if b'"$ref"' in data:
        value = _References(value).resolve()
        _check_depth(value)
    return value


def dumps(value: Any) -> bytes:
    """Write a value of dicts, lists and scalars; RawKeys go out with unquoted keys."""
    if isinstance(value, RawKeys):
        return b"{" + b",".join(key.encode() + b":" + dumps(item) for key, item in value.items()) + b"}"
    if isinstance(value, dict):
        return b"{" + b",".join(orjson.dumps(key) + b":" + dumps(item) for key, item in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(dumps, value)) + b"]"
    return orjson.dumps(value)


class _Parser:
    """Recursive descent over one document."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._kind = ""
        self._text = b""
        self._is_in_key = False
        self._next()

    def document(self) -> Any:
        value = self._value(depth=0)
        if self._kind != "end":
            raise self._unexpected()
        return value

    def _next(self) -> None:
        match = _TOKEN.match(self._data, self._position)
        if match is None:
            raise RemoteProtocolError(f"not JSON at byte {self._position}")
        self._position = match.end()
        self._kind = str(match.lastgroup)
        self._text = match.group(match.lastgroup or 0)

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise RemoteProtocolError(f"JSON nests deeper than {DEPTH_MAX}")
        kind, text = self._kind, self._text
        if text == b"{" and kind == "punctuation":
            return self._object(depth)
        if text == b"[" and kind == "punctuation":
            return self._array(depth)
        if kind == "word" and text in _WORDS:
            self._next()
            return _WORDS[text]
        if kind in ("string", "number"):
            self._next()
            return _scalar(text)
        raise self._unexpected()

    def _object(self, depth: int) -> dict[str, Any]:
        self._next()
        result: dict[str, Any] = {}
        while self._text != b"}":
            key = self._key(depth)
            self._expect(b":")
            result[key] = self._value(depth + 1)
            if self._text != b"}":
                self._expect(b",")
        self._expect(b"}")
        return result

    def _key(self, depth: int) -> str:
        kind, text = self._kind, self._text
        if kind == "string":
            self._next()
            return str(_scalar(text))
        if kind in ("number", "word"):
            self._next()
            return text.decode()
        # Text within text within text: the quotes of each level would double the size of the one inside.
        if self._is_in_key:
            raise RemoteProtocolError("an object as a key within an object as a key")
        self._is_in_key = True
        key = orjson.dumps(self._value(depth + 1)).decode()
        self._is_in_key = False
        return key

    def _array(self, depth: int) -> list[Any]:
        self._next()
        result = []
        while self._text != b"]":
            result.append(self._value(depth + 1))
            if self._text != b"]":
                self._expect(b",")
        self._expect(b"]")
        return result

    def _expect(self, text: bytes) -> None:
        if self._text != text or self._kind != "punctuation":
            raise self._unexpected()
        self._next()

    def _unexpected(self) -> RemoteProtocolError:
        return RemoteProtocolError(f"unexpected {self._text[:40]!r} before byte {self._position} of JSON")


def _scalar(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # A number with leading zeros, or a string with an escape that JSON does not have.
        raise RemoteProtocolError(f"{text[:40]!r} is not JSON") from None


def _check_depth(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(DEPTH_MAX + 1):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise RemoteProtocolError(f"JSON nests deeper than {DEPTH_MAX}")


class _References:
    """Replaces each {"$ref": path} by what it points to. Java writes them for objects that occur twice."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._size_left = REFERENCES_SIZE_MAX

    def resolve(self) -> Any:
        return self._resolve(self._root, ())

    def _resolve(self, value: Any, parents: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and len(value) == 1:
                return self._copy(self._target(reference, parents))
            for key, item in value.items():
                value[key] = self._resolve(item, (*parents, value))
        elif isinstance(value, list):
            value[:] = [self._resolve(item, (*parents, value)) for item in value]
        return value

    def _target(self, reference: str, parents: tuple[Any, ...]) -> Any:
        if reference == "@" and parents:
            return parents[-1]
        if reference == ".." and len(parents) > 1:
            return parents[-2]
        value = self._root
        for name, index in re.findall(r"\.([^.\[\]]+)|\[([0-9]+)\]", reference):
            try:
                value = value[name] if name else value[int(index)]
            except (LookupError, TypeError, ValueError):
                raise RemoteProtocolError(f"the reference {reference[:80]!r} points nowhere") from None
        return value

    def _copy(self, value: Any) -> Any:
        """A copy that ends at references, so that a document that contains itself stays finite."""
        try:
            text = orjson.dumps(value)
        except orjson.JSONEncodeError:
            raise RemoteProtocolError("references in JSON nest too deep") from None
        self._size_left -= len(text)
        if self._size_left < 0:
            raise RemoteProtocolError(f"references in JSON add more than {REFERENCES_SIZE_MAX} bytes")
        return orjson.loads(text)
