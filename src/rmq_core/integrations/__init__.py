"""RocketMQ in an application's own words: decorators and a template, log shipping, OpenMessaging, pytest.

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_core.integrations.app import App
    from rmq_core.integrations.conversion import ConversionError, from_body, to_body
    from rmq_core.integrations.template import Template

_HOMES = {
    "App": "rmq_core.integrations.app",
    "ConversionError": "rmq_core.integrations.conversion",
    "Template": "rmq_core.integrations.template",
    "from_body": "rmq_core.integrations.conversion",
    "to_body": "rmq_core.integrations.conversion",
}

__all__ = ["App", "ConversionError", "Template", "from_body", "to_body"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
