"""Calls a user's function with what its parameters ask for.

The first parameter gets the body, converted to its type hint; the message itself where the hint is a message, or
where there is none. A second one gets the message beside the body. Listeners of batches take lists of either.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, Final

from rmq_core.client.received import ReceivedMessage
from rmq_core.client.transactions import HalfMessage
from rmq_core.integrations.conversion import ConversionError, from_body, reader

_MESSAGES: Final = (inspect.Parameter.empty, Any, ReceivedMessage, HalfMessage, ReceivedMessage | HalfMessage)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def bind(function: Callable[..., Any], *, into: Any = None, is_batch: bool = False) -> Callable[[Any], Any]:
    """The function, to be called with a message or a list of messages; a coroutine function stays one.

    into stands in for the hint of the first parameter. Raises TypeError where the parameters cannot be served.
    """
    called = _name(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind in _POSITIONAL]
    needed = [each for each in parameters if each.default is inspect.Parameter.empty]
    if not parameters or len(needed) > 2:
        raise TypeError(f"{called} must take the body, or the body and the message, not {len(needed)} arguments")
    hint = into if into is not None else _hint(function, parameters[0])
    if is_batch and hint not in _MESSAGES:
        hint = _item(hint, called)
    wants_message = len(needed) == 2
    convert = _converter(hint, called)

    def arguments(taken: Any) -> tuple[Any, ...]:
        value = [convert(each) for each in taken] if is_batch else convert(taken)
        return (value, taken) if wants_message else (value,)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_later(taken: Any) -> Any:
            return await function(*arguments(taken))

        return call_later

    @functools.wraps(function)
    def call(taken: Any) -> Any:
        return function(*arguments(taken))

    return call


def bind_with_argument(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The same for `execute(body, argument)` of transaction listeners."""
    called = _name(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind in _POSITIONAL]
    if len(parameters) != 2:
        raise TypeError(f"{called} must take the body or message, and the argument of the send")
    convert = _converter(_hint(function, parameters[0]), called)
    return lambda message, argument: function(convert(message), argument)


def _converter(hint: Any, called: str) -> Callable[[Any], Any]:
    if hint in _MESSAGES:
        return lambda message: message
    if hint not in (bytes, str):
        try:
            reader(hint)
        except TypeError as error:
            raise TypeError(f"{called}: {error}") from None

    def convert(message: Any) -> Any:
        try:
            return from_body(message.body, hint)
        except ConversionError as error:
            raise ConversionError(f"message {message.msg_id} of {message.topic}: {error}") from None

    return convert


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    try:
        called = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(getattr(called, "__func__", called), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{_name(function)}: the type hint {parameter.annotation!r} cannot be resolved ({error}); "
            "define the class at the top of a module, or give it as into="
        ) from None
    return hints.get(parameter.name, inspect.Parameter.empty)


def _item(hint: Any, called: str) -> Any:
    """What the list of a batch holds."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is not list or len(arguments) != 1:
        raise TypeError(f"{called} gets batches: its first parameter must be a list of something, not {hint}")
    return arguments[0]


def _name(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__qualname__', None) or type(function).__name__}()"
