"""Every setting, declared once."""

from rmq_core.config.broker import BROKER_DEFAULTS, BrokerSettings
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
from rmq_core.config.store import StoreSettings

__all__ = [
    "BROKER_DEFAULTS",
    "NAMESRV_DEFAULTS",
    "USAGE",
    "Arguments",
    "BrokerSettings",
    "ClientSettings",
    "Key",
    "NamesrvSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
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
