"""How a setting is declared, checked, read and written.

Declared  Once, as a field of a Settings dataclass: `name: type = key(default, text, ...)`. Its name in files and on
          the wire is the camelCase of the field's name unless Java calls it otherwise.
Checked   On every way in: constructor, properties, run-time change. A bad value raises ConfigError and changes
          nothing.
Unknown   Keys that no class declares are kept, given back and reported, so that Apache RocketMQ's own files load.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self, TypeVar, cast, overload

from rmq_core.config.properties import format_properties
from rmq_core.errors import ConfigError

T = TypeVar("T")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_INTEGER_LIMIT = 1 << 63
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False}
_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number of at most 64 bits",
    float: "a number",
    str: "text",
}
_HOME = re.compile(r"^~(?=/|$)|\$HOME\b|\$\{(?:HOME|user\.home)\}")
_SECRET_NAME = re.compile("passw|secret", re.IGNORECASE)


def key(
    default: T,
    text: str,
    *,
    name: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[T, ...] | None = None,
    live: bool = False,
    secret: bool = False,
) -> T:
    """Declare one setting of a Settings class.

    live: it may change while the program runs. secret: it is left out of everything that is shown.
    """
    options = {
        "name": name,
        "text": text,
        "at_least": at_least,
        "at_most": at_most,
        "one_of": one_of,
        "live": live,
        "secret": secret,
    }
    return field(default=default, repr=not secret, metadata=options)


def no_effect(default: T, text: str, *, name: str | None = None) -> T:
    """Declare a setting of Java's programs that means nothing here; it can be set and changed all the same."""
    return key(default, f"{text} Accepted for compatibility; has no effect.", name=name, live=True)


@dataclass(frozen=True, slots=True)
class Key:
    """A declared setting: what reads, checks and writes its value."""

    attribute: str
    name: str
    """In files and on the wire."""
    kind: type
    is_optional: bool
    default: object
    text: str
    at_least: float | None
    at_most: float | None
    one_of: tuple[object, ...] | None
    live: bool
    secret: bool

    def parse(self, text: str) -> object:
        """Read and check a value. Raises ConfigError."""
        given = text if self.secret else text.strip()
        if self.is_optional and not given:
            return None
        value = self._convert(given)
        if value is None:
            raise self.error(text, f"must be {self.allowed_kind()}")
        self.check(value)
        return value

    def _convert(self, text: str) -> object | None:
        if self.kind is str:
            return text
        if self.kind is bool:
            return _BOOLEANS.get(text.lower())
        if self.kind is int:
            return int(text) if _INTEGER.fullmatch(text) else None
        if self.kind is float:
            return float(text) if _NUMBER.fullmatch(text) else None
        return next((member for member in self._members() if self.format(member) == text), None)

    def check(self, value: object) -> None:
        """Raises ConfigError where the value cannot be used."""
        if value is None and self.is_optional:
            return
        if not self._is_of_kind(value):
            raise self.error(value, f"must be {self.allowed_kind()}")
        if self.at_least is not None and cast("float", value) < self.at_least:
            raise self.error(value, f"must be at least {self.at_least}")
        if self.at_most is not None and cast("float", value) > self.at_most:
            raise self.error(value, f"must be at most {self.at_most}")
        if self.one_of is not None and value not in self.one_of:
            raise self.error(value, f"must be one of {self._list(self.one_of)}")

    def _is_of_kind(self, value: object) -> bool:
        if isinstance(value, bool) or self.kind is bool:
            return isinstance(value, bool) and self.kind is bool
        if self.kind is float and isinstance(value, float):
            return math.isfinite(value)
        if self.kind in (int, float):
            return isinstance(value, int) and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
        return isinstance(value, self.kind)

    def format(self, value: object) -> str:
        """The value as Java writes it: enums by their text, else by their name."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, Enum):
            return value.value if isinstance(value.value, str) else value.name
        return str(value)

    def error(self, value: object, reason: str) -> ConfigError:
        if self.secret:
            shown: object = "******"
        else:
            shown = self.format(value) if isinstance(value, Enum) else value
        return ConfigError(self.name, shown, reason)

    def allowed_kind(self) -> str:
        """What the type alone allows, in words."""
        return _KINDS.get(self.kind) or f"one of {self._list(self._members())}"

    def allowed(self) -> str:
        """What the range or the list of values allows, in words; empty where the type says it all."""
        if self.one_of is not None:
            return f"One of {self._list(self.one_of)}."
        if issubclass(self.kind, Enum):
            return f"One of {self._list(self._members())}."
        if self.at_least is not None and self.at_most is not None:
            return f"From {self.at_least} to {self.at_most}."
        if self.at_least is not None:
            return f"At least {self.at_least}."
        return "" if self.at_most is None else f"At most {self.at_most}."

    def _members(self) -> Iterable[object]:
        return cast("Iterable[object]", self.kind)

    def _list(self, values: Iterable[object]) -> str:
        return ", ".join(self.format(value) for value in values)


@dataclass(kw_only=True)
class Settings:
    """Settings of one part of a program; subclasses are dataclasses(kw_only=True) of key() fields."""

    unknown: dict[str, str] = field(default_factory=dict, repr=False)
    """Keys that were read and that no class declares."""

    def __post_init__(self) -> None:
        for each in keys_of(type(self)):
            each.check(getattr(self, each.attribute))
        self.check_together()

    def check_together(self) -> None:
        """Raise ConfigError where values contradict each other; subclasses override it."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Raises ConfigError. Keys of other programs end in `unknown`; load() also reports them."""
        return load(properties, cls)[0]

    def to_properties(self, *, secrets: bool = False) -> dict[str, str]:
        """Every value and the unknown keys; without secrets, and without what is None, as Java does."""
        properties = {
            name: value for name, value in self.unknown.items() if secrets or not _SECRET_NAME.search(name)
        }
        for each in keys_of(type(self)):
            value = getattr(self, each.attribute)
            if value is not None and (secrets or not each.secret):
                properties[each.name] = each.format(value)
        return properties

    def to_text(self, *, secrets: bool = False) -> str:
        """The same as properties text."""
        return format_properties(self.to_properties(secrets=secrets))

    def update(self, properties: Mapping[str, str]) -> list[str]:
        """update_all() for this instance alone."""
        return update_all(properties, self)


_KEYS: dict[type[Settings], tuple[Key, ...]] = {}


def keys_of(settings: type[Settings]) -> tuple[Key, ...]:
    """The declared settings of a class, in their order."""
    if settings not in _KEYS:
        _KEYS[settings] = _declared_keys(settings)
    return _KEYS[settings]


def _declared_keys(settings: type[Settings]) -> tuple[Key, ...]:
    hints = typing.get_type_hints(settings)
    keys = []
    for declared in fields(settings):
        if "text" not in declared.metadata:
            continue
        kind, is_optional = _kind(hints[declared.name])
        assert kind in _KINDS or issubclass(kind, Enum), f"{declared.name}: settings cannot be of {kind}"
        options: dict[str, Any] = dict(declared.metadata)
        options["name"] = options["name"] or _camel_case(declared.name)
        keys.append(
            Key(
                attribute=declared.name,
                kind=kind,
                is_optional=is_optional,
                default=declared.default,
                **options,
            )
        )
    assert len({each.name for each in keys}) == len(keys), f"{settings.__name__} declares a name twice"
    return tuple(keys)


def _kind(hint: Any) -> tuple[type, bool]:
    """The type of a value, and whether None may stand for it."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (kind,) = (each for each in typing.get_args(hint) if each is not type(None))
        return kind, True
    return hint, False


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that no class declares: a slip of the pen, or a setting that this program does not have."""

    name: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"unknown setting {self.name}{hint}"


A = TypeVar("A", bound=Settings)
B = TypeVar("B", bound=Settings)
C = TypeVar("C", bound=Settings)
D = TypeVar("D", bound=Settings)
Properties = Mapping[str, str]


@overload
def load(
    properties: Properties, a: type[A], /, *, defaults: Properties | None = None
) -> tuple[A, list[UnknownKey]]: ...
@overload
def load(
    properties: Properties, a: type[A], b: type[B], /, *, defaults: Properties | None = None
) -> tuple[A, B, list[UnknownKey]]: ...
@overload
def load(
    properties: Properties, a: type[A], b: type[B], c: type[C], /, *, defaults: Properties | None = None
) -> tuple[A, B, C, list[UnknownKey]]: ...
@overload
def load(
    properties: Properties,
    a: type[A],
    b: type[B],
    c: type[C],
    d: type[D],
    /,
    *,
    defaults: Properties | None = None,
) -> tuple[A, B, C, D, list[UnknownKey]]: ...
def load(properties: Properties, *classes: Any, defaults: Properties | None = None) -> Any:
    """Make one instance of each class from one set of properties, and list the keys that none of them knows.

    defaults: values of the program that stand in for those of the classes. The first instance keeps the unknown
    keys. Raises ConfigError.
    """
    known = [each.name for settings in classes for each in keys_of(settings)]
    assert set(known).issuperset(defaults or {}), "a default for a setting that no class declares"
    unknown = {name: value for name, value in properties.items() if name not in set(known)}
    given = {**(defaults or {}), **properties}
    instances: list[Settings] = []
    for settings in classes:
        values = {each.attribute: each.parse(given[each.name]) for each in keys_of(settings) if each.name in given}
        instances.append(settings(unknown={} if instances else unknown, **values))
    return *instances, [UnknownKey(name, _nearest(name, known)) for name in unknown]


def _nearest(name: str, known: list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def update_all(properties: Properties, *settings: Settings) -> list[str]:
    """Change live settings while the program runs and return the names of those that have a new value.

    Keys that no instance knows are ignored, as Apache RocketMQ does. Raises ConfigError where a value is bad or
    its key is read only at start; nothing has changed then.
    """
    changes = [(instance, _changes(instance, properties)) for instance in settings]
    for instance, changed in changes:
        replace(instance, **{each.attribute: value for each, value in changed})
    for instance, changed in changes:
        for each, value in changed:
            setattr(instance, each.attribute, value)
    return list(dict.fromkeys(each.name for _, changed in changes for each, _ in changed))


def _changes(settings: Settings, properties: Properties) -> list[tuple[Key, Any]]:
    changed = []
    for each in keys_of(type(settings)):
        if each.name not in properties:
            continue
        value = each.parse(properties[each.name])
        if value == getattr(settings, each.attribute):
            continue
        if not each.live:
            raise each.error(value, "is read only at start: change the file and restart")
        changed.append((each, value))
    return changed


def expand_path(text: str) -> Path:
    """A path with the home directory in place of a leading ~, of $HOME and of Java's ${user.home}."""
    return Path(_HOME.sub(lambda _: os.path.expanduser("~"), text))
