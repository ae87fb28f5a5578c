"""Keyword arguments of clients: each kind of client declares its own once, for its blocking and its async form.

A declaration is an options class, a frozen dataclass with names, defaults, meanings and checks. Beside it stands a
TypedDict of the same names and types, by which type checkers and editors know what may be written. What is wrong
raises TypeError or ValueError that names the argument, before anything is sent.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

from rmq_core.protocol.message import group_name_problem


def refuse_unknown(given: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError for the first name that is not known, with what was probably meant."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise TypeError(f"unknown argument {name!r}; {meant}")


def checked_group(group: str, *, reserved: str) -> str:
    """The name of a group. Raises TypeError and ValueError."""
    if not isinstance(group, str):
        raise TypeError(f"group must be str, not {type(group).__name__}")
    if problem := group_name_problem(group):
        raise ValueError(problem)
    if group == reserved:
        raise ValueError(f"group must not be {reserved}, which everybody could use; give it a name of your own")
    return group


def whole_number(what: str, value: int, *, low: int = 1, high: int | None = None) -> int:
    """Raises TypeError and ValueError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be int, not {type(value).__name__}")
    if value < low:
        raise ValueError(f"{what} must be at least {low}, not {value}")
    if high is not None and value > high:
        raise ValueError(f"{what} must be at most {high}, not {value}")
    return value


def milliseconds(what: str, value: float) -> float:
    """Raises TypeError and ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of milliseconds, not {type(value).__name__}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{what} must be more than 0, not {value}")
    return value


def yes_or_no(what: str, value: bool) -> bool:
    """Raises TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}")
    return value


def text(what: str, value: str) -> str:
    """Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be str, not {type(value).__name__}")
    return value


def function_or_none(what: str, value: object) -> None:
    """Raises TypeError."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} must be a function, not {type(value).__name__}")


def path_or_none(what: str, value: str | Path | None) -> None:
    """Raises TypeError."""
    if value is not None and not isinstance(value, str | Path):
        raise TypeError(f"{what} must be a path, not {type(value).__name__}")
