"""What users may hang into a client: objects with any of these methods, given as `hooks=[…]`.

before_call(peer, command)             before a request goes out; may change command.ext; raising stops the call
after_call(peer, command, response)    with the answer
check_send(context)                    before a send; raising refuses it
before_send(context)                   after that
after_send(context)                    with context.result or context.error
before_consume(context)                before a listener is called
after_consume(context)                 with context.is_success

What the last three kinds raise is logged and goes no further: a look-on must not lose messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from rmq_core.client.options import Credentials
from rmq_core.protocol.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature
from rmq_core.protocol.command import Command

logger = logging.getLogger(__name__)

NAMES: Final = (
    "before_call",
    "after_call",
    "check_send",
    "before_send",
    "after_send",
    "before_consume",
    "after_consume",
)


class Hooks:
    """The methods of all hooks, by name, in the order in which they were given."""

    def __init__(self, hooks: Sequence[object] = ()) -> None:
        self._methods: dict[str, tuple[Callable[..., Any], ...]] = {}
        for hook in hooks:
            if not any(callable(getattr(hook, name, None)) for name in NAMES):
                raise TypeError(f"hooks: {hook!r} has none of the methods {', '.join(NAMES)}")
        for name in NAMES:
            methods = [getattr(hook, name) for hook in hooks if callable(getattr(hook, name, None))]
            if methods:
                self._methods[name] = tuple(methods)

    def has(self, *names: str) -> bool:
        """Whether any hook has one of these methods: building a context costs time."""
        return any(name in self._methods for name in names)

    def check(self, name: str, *arguments: Any) -> None:
        """Call the methods of that name; what one raises is the caller's."""
        for method in self._methods.get(name, ()):
            method(*arguments)

    def tell(self, name: str, *arguments: Any) -> None:
        """Call the methods of that name; what one raises is logged."""
        for method in self._methods.get(name, ()):
            try:
                method(*arguments)
            except Exception:
                logger.exception("the hook %r failed in %s", method, name)


class CallHook:
    """Hangs users' hooks into calls, and signs what they have left of the header."""

    def __init__(self, hooks: Hooks, credentials: Credentials | None) -> None:
        self._hooks = hooks
        self._credentials = credentials

    @property
    def is_needed(self) -> bool:
        """Whether calls have to pass here at all."""
        return self._credentials is not None or self._hooks.has("before_call", "after_call")

    def before(self, peer: str, request: Command) -> None:
        """Users' hooks first: what they add is signed too."""
        self._hooks.check("before_call", peer, request)
        credentials = self._credentials
        if credentials is not None:
            ext = dict(request.ext or {})
            ext[ACCESS_KEY] = credentials.access_key
            if credentials.security_token is not None:
                ext[SECURITY_TOKEN] = credentials.security_token
            ext[SIGNATURE] = signature(ext, request.body, credentials.secret_key)
            request.ext = ext

    def after(self, peer: str, request: Command, response: Command | None) -> None:
        """Tell users' hooks."""
        self._hooks.tell("after_call", peer, request, response)
