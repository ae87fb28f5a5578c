"""Settings of the name server: Java's NamesrvConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmq_core.config.settings import Settings, key, no_effect

NAMESRV_DEFAULTS: Final = {"listenPort": "9876"}
"""What a name server sets in ServerSettings; for load(defaults=...)."""


@dataclass(kw_only=True)
class NamesrvSettings(Settings):
    """The name server."""

    kv_config_path: str = key("$HOME/namesrv/kvConfig.json", "File of the key-value settings.")
    config_store_path: str = key(
        "$HOME/namesrv/namesrv.properties",
        "File that run-time changes are written to; the file given with -c takes its place.",
    )
    config_black_list: str = key(
        "configBlackList;configStorePath;kvConfigPath",
        "Keys that no request may change, separated by semicolons.",
    )
    order_message_enable: bool = key(False, "Add the order configuration of a topic to its route.", live=True)
    return_order_topic_config_to_broker: bool = key(
        True, "Answer a broker's registration with the order configuration of all topics.", live=True
    )
    scan_not_active_broker_interval: int = key(
        5000, "Time in ms between two searches for brokers that have gone silent.", at_least=1
    )
    support_acting_master: bool = key(
        False, "Show the slave with the smallest id as master where the master is gone.", live=True
    )
    notify_min_broker_id_changed: bool = key(
        False, "Tell the brokers of a group when their smallest id changes.", live=True
    )
    enable_all_topic_list: bool = key(True, "Serve the list of all topics.", live=True)
    enable_topic_list: bool = key(True, "Serve lists of topics by cluster and kind.", live=True)
    need_wait_for_service: bool = key(False, "Refuse routes for waitSecondsForService after the start.", live=True)
    wait_seconds_for_service: int = key(
        45, "Time after the start in which routes are refused.", at_least=0, live=True
    )
    delete_topic_with_broker_registration: bool = key(
        False, "Drop the topics of a broker that its new registration no longer names.", live=True
    )

    rocketmq_home: str | None = no_effect(None, "Directory of the installation.")
    product_env_name: str = no_effect("center", "Name of the environment that a test cluster asks.")
    cluster_test: bool = no_effect(False, "Ask another environment for routes that are not known here.")
    client_request_thread_pool_nums: int = no_effect(8, "Threads that serve routes.")
    client_request_thread_pool_queue_capacity: int = no_effect(50_000, "Route requests that may wait.")
    default_thread_pool_nums: int = no_effect(16, "Threads that serve everything else.")
    default_thread_pool_queue_capacity: int = no_effect(10_000, "Other requests that may wait.")
    un_register_broker_queue_capacity: int = no_effect(3_000, "Brokers that may wait to be removed.")
    enable_controller_in_namesrv: bool = no_effect(False, "Run a controller in this process.")
