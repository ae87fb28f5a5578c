"""Every setting, declared once."""

from rmq_core.config.client import ClientSettings
from rmq_core.config.namesrv import NAMESRV_DEFAULTS, NamesrvSettings
from rmq_core.config.properties import (
    USAGE,
    Arguments,
    format_properties,
    parse_arguments,
    parse_properties,
    read_properties,
)
from rmq_core.config.server import ServerSettings
from rmq_core.config.settings import (
    Key,
    Settings,
    UnknownKey,
    expand_path,
    key,
    keys_of,
    load,
    no_effect,
    update_all,
)

__all__ = [
    "NAMESRV_DEFAULTS",
    "USAGE",
    "Arguments",
    "ClientSettings",
    "Key",
    "NamesrvSettings",
    "ServerSettings",
    "Settings",
    "UnknownKey",
    "expand_path",
    "format_properties",
    "key",
    "keys_of",
    "load",
    "no_effect",
    "parse_arguments",
    "parse_properties",
    "read_properties",
    "update_all",
]
