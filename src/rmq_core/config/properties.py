"""Java's .properties text, and the command line of the programs.

Reading  Comments (# and !), the separators =, : and blank, continued lines and \\uXXXX as Java reads them; files
         are UTF-8. The last of equal keys counts.
Writing  Sorted by key, `key=value` without blanks, as Apache RocketMQ answers; what is not printable ASCII is
         escaped, since Java reads property bytes as Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmq_core.errors import ConfigError

_BLANKS = " \t\f"
# str.splitlines() also breaks at separators that Java keeps as text.
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_FOUR_HEX_DIGITS = re.compile(r"[0-9a-fA-F]{4}")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNSAFE = re.compile(r"[^ -\[\]-~]")
_UNSAFE_IN_KEY = re.compile(r"[^!-\[\]-~]|[=:#!]")
_CONTROL_NAMES = {character: f"\\{letter}" for letter, character in _CONTROLS.items()}


def parse_properties(text: str, *, file: str = "properties") -> dict[str, str]:
    """Raises ConfigError with file and line where an escape cannot be read."""
    properties = {}
    for number, line in _logical_lines(text):
        match = _KEY_AND_VALUE.fullmatch(line)
        assert match is not None, "every part of the pattern may be empty"
        where = f"{file} line {number}"
        name = _unescape(match[1], name=match[1], where=where)
        properties[name] = _unescape(match[2], name=name, where=where)
    return properties


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a file. Raises ConfigError where it cannot be read or is not properties text in UTF-8."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError("configFile", path, f"cannot be read: {reason}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = len(_LINE_END.findall(content[: error.start].decode("utf-8", "replace"))) + 1
        raise ConfigError("configFile", path, f"line {number} is not UTF-8") from error
    return parse_properties(text, file=str(path))


def format_properties(properties: Mapping[str, str]) -> str:
    """Text that parse_properties and Java read back as the same keys and values."""
    return "".join(f"{_escape_key(name)}={_escape_value(properties[name])}\n" for name in sorted(properties))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, numbered from 1, without comments and blank lines."""
    lines = iter(enumerate(_LINE_END.split(text), start=1))
    for number, first in lines:
        line = first.lstrip(_BLANKS)
        if line.startswith(("#", "!")):
            continue
        parts = []
        while _is_continued(line):
            parts.append(line[:-1])
            line = next(lines, (0, ""))[1].lstrip(_BLANKS)
        parts.append(line)
        if joined := "".join(parts):
            yield number, joined


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, *, name: str, where: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] != "u":
            return _CONTROLS.get(escaped, escaped)
        if not _FOUR_HEX_DIGITS.fullmatch(escaped, 1):
            raise ConfigError(name, match[0], f"{where}: \\u needs four hexadecimal digits")
        return chr(int(escaped[1:], 16))

    replaced = _ESCAPE.sub(replace, text)
    try:
        # Java writes a character above U+FFFF as two escapes; here they become one character again.
        return replaced.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ConfigError(name, text, f"{where}: half of a surrogate pair") from error


def _escape_key(name: str) -> str:
    return _UNSAFE_IN_KEY.sub(_escape, name)


def _escape_value(value: str) -> str:
    escaped = _UNSAFE.sub(_escape, value)
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _CONTROL_NAMES:
        return _CONTROL_NAMES[character]
    if " " <= character <= "~":
        return "\\" + character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


USAGE = """\
usage: {program} [-c FILE] [-n ADDRESSES] [-p] [--key value | --key=value | key=value]...

  -c, --configFile FILE         read settings from a properties file; what follows on the command line wins
  -n, --namesrvAddr ADDRESSES   name servers, separated by semicolons
  -p, --printConfigItem         print every setting and stop
  -m, --printImportantConfig    the same
  -h, --help                    print this text and stop
"""

_FLAGS = {
    "-h": "help",
    "--help": "help",
    "-p": "print",
    "--printConfigItem": "print",
    "-m": "print",
    "--printImportantConfig": "print",
}
_SHORT_NAMES = {"-c": "configFile", "-n": "namesrvAddr"}


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line, with the properties of its file."""

    file: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    """Of the file, and over them those of the command line."""
    is_help_wanted: bool = False
    is_print_wanted: bool = False


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read a command line (without the program's name) and the file it names.

    Raises ConfigError where an argument is no option, lacks its value, or the file cannot be read.
    """
    flags: set[str] = set()
    given: dict[str, str] = {}
    arguments = iter(argv)
    for argument in arguments:
        if flag := _FLAGS.get(argument):
            flags.add(flag)
            continue
        name, has_value, value = argument.removeprefix("--").partition("=")
        if argument in _SHORT_NAMES or (argument.startswith("--") and not has_value):
            name = _SHORT_NAMES.get(argument, name)
            following = next(arguments, None)
            if following is None:
                raise ConfigError(argument, "", "needs a value")
            value = following
        elif not has_value or argument.startswith("-") != argument.startswith("--"):
            raise ConfigError(argument, "", "is neither an option nor key=value; -h lists the options")
        if not name:
            raise ConfigError(argument, value, "has no key")
        given[name] = value
    file = given.pop("configFile", None)
    properties = {} if file is None or "help" in flags else read_properties(file)
    return Arguments(
        file=file,
        properties=properties | given,
        is_help_wanted="help" in flags,
        is_print_wanted="print" in flags,
    )
