"""Settings of the broker: Java's BrokerConfig, and a few of our own."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from rmq_core.config.settings import Settings, key, no_effect
from rmq_core.errors import ConfigError

BROKER_DEFAULTS: Final = {"listenPort": "10911"}
"""What a broker sets in ServerSettings; for load(defaults=...)."""

INT_MAX: Final = (1 << 31) - 1
PORT_MAX: Final = 65_535


@dataclass(kw_only=True)
class BrokerSettings(Settings):
    """A broker. Sizes are in bytes; what later versions bring is listed with its default."""

    # Who it is
    broker_cluster_name: str = key("DefaultCluster", "Name of the cluster.")
    broker_name: str = key("", "Name that a master and its slaves share; by default the name of this machine.")
    broker_id: int = key(
        0, "0 for a master, above 0 for a slave, -1 where a controller would choose; see brokerRole.", at_least=-1
    )
    broker_ip1: str | None = key(
        None, "Address that clients are told; by default the first one of this machine.", name="brokerIP1"
    )
    broker_ip2: str | None = key(None, "Address that replicas are told; by default brokerIP1.", name="brokerIP2")
    region_id: str = key("DefaultRegion", "Region that each message names in MSG_REGION.")

    # Name servers
    namesrv_addr: str | None = key(
        None,
        "Name servers: host:port, separated by semicolons; by default what the environment gives as NAMESRV_ADDR.",
        live=True,
    )
    register_name_server_period: int = key(
        30_000, "Time in ms between two registrations; 10,000 to 60,000 count.", at_least=1
    )
    register_broker_timeout_mills: int = key(
        24_000, "Longest time in ms that a registration may take.", at_least=1, live=True
    )
    force_register: bool = key(
        True, "Register without asking first whether the name server knows the topics.", live=True
    )
    compressed_register: bool = key(False, "Compress registrations.", live=True)
    broker_heartbeat_interval: int = key(
        1000, "Time in ms between two heartbeats to a name server, with enableSlaveActingMaster.", at_least=1
    )
    send_heartbeat_timeout_millis: int = key(
        1000, "Longest time in ms that such a heartbeat may take.", at_least=1, live=True
    )
    broker_not_active_timeout_millis: int = key(
        10_000, "Time in ms without one after which name servers drop the broker.", at_least=1
    )

    # Permissions
    broker_permission: int = key(
        6, "What clients may do: 6 read and write, 4 read, 2 write.", at_least=0, at_most=7, live=True
    )
    start_accept_send_request_time_stamp: int = key(
        0, "Time in ms since 1970 before which sends are refused.", at_least=0, live=True
    )
    reject_transaction_message: bool = key(False, "Refuse messages of transactions.", live=True)
    reject_pull_consumer_enable: bool = key(False, "Refuse pulls of consumers that sent no heartbeat.", live=True)
    lite_pull_message_enable: bool = key(True, "Serve pulls of lite pull consumers.", live=True)
    enable_property_filter: bool = key(False, "Allow subscriptions by SQL92 expressions.", live=True)
    config_black_list: str = key(
        "configBlackList;brokerConfigPath",
        "Keys that no request may change, separated by semicolons.",
    )
    broker_config_path: str | None = key(
        None, "File that run-time changes are written to; the file given with -c takes its place."
    )

    # Topics and groups
    auto_create_topic_enable: bool = key(True, "Create a topic when the first message is sent to it.", live=True)
    default_topic_queue_nums: int = key(8, "Most queues of such a topic.", at_least=1)
    cluster_topic_enable: bool = key(True, "Make the topic named as the cluster readable and writable.")
    broker_topic_enable: bool = key(True, "Make the topic named as the broker readable and writable.")
    trace_topic_enable: bool = key(False, "Create the topic of message traces.")
    msg_trace_topic_name: str = key("RMQ_SYS_TRACE_TOPIC", "Name of the topic of message traces.")
    trace_on: bool = key(True, "Tell producers to trace their messages.")
    validate_system_topic_when_update_topic: bool = key(
        True, "Refuse to change the topics of the broker itself.", live=True
    )
    clear_retry_topic_when_delete_topic: bool = key(
        True, "Delete the retry topics of POP with their topic.", live=True
    )
    enable_mixed_message_type: bool = key(False, "Allow topics whose messages are of several types.", live=True)
    enable_single_topic_register: bool = key(False, "Register a new topic by a request of its own kind.", live=True)
    enable_split_registration: bool = key(False, "Register a large table of topics in parts.", live=True)
    split_registration_size: int = key(800, "Topics of one part.", at_least=1, live=True)
    auto_create_subscription_group: bool = key(True, "Create a group when it is first used.", live=True)
    enable_create_sys_group: bool = key(
        True,
        "Create groups whose names begin with CID_RMQ_SYS_ even without autoCreateSubscriptionGroup.",
        live=True,
    )

    # Sending
    store_reply_message_enable: bool = key(True, "Store the replies of request and reply.", live=True)
    forward_timeout: int = key(3000, "Longest time in ms that a forwarded request may take.", at_least=1, live=True)
    broker_fast_failure_enable: bool = key(True, "Refuse sends while the broker is busy.", live=True)
    wait_time_mills_in_send_queue: int = key(
        200, "Time in ms that sends may have to wait before they are refused.", at_least=1, live=True
    )

    # Pulling
    long_polling_enable: bool = key(True, "Hold a pull until there is a message for it.", live=True)
    short_polling_time_mills: int = key(
        1000, "Time in ms that a pull is held without longPollingEnable.", at_least=0, live=True
    )
    long_polls_max: int = key(100_000, "Pulls held at once; further ones are answered without waiting.", at_least=1)
    slave_read_enable: bool = key(False, "Send consumers that are far behind to a slave.", live=True)
    disable_consume_if_consumer_read_slowly: bool = key(
        False, "Stop serving groups that are consumerFallbehindThreshold behind.", live=True
    )
    consumer_fallbehind_threshold: int = key(
        16 << 30, "Bytes by which such a group is behind.", at_least=1, live=True
    )

    # Filters
    enable_calc_filter_bit_map: bool = key(
        False, "Compute the filter bits of each message; needs enableConsumeQueueExt."
    )
    expect_consumer_num_use_filter: int = key(32, "Filters of a topic that the bits are made for.", at_least=1)
    max_error_rate_of_bloom_filter: int = key(
        20, "Percent of messages that the bits may let through wrongly.", at_least=1, at_most=99
    )
    filter_data_clean_time_span: int = key(
        86_400_000, "Time in ms that a filter is kept after its last subscriber.", at_least=0, live=True
    )
    filter_support_retry: bool = key(False, "Filter retried messages by the expression for their topic.", live=True)

    # Consumers
    notify_consumer_ids_changed_enable: bool = key(True, "Tell a group when its members change.", live=True)
    real_time_notify_consumer_change: bool = key(True, "Tell it at once; otherwise every 15 s.", live=True)
    channel_expired_timeout: int = key(
        120_000, "Time in ms without a heartbeat after which a client is dropped.", at_least=1, live=True
    )
    subscription_expired_timeout: int = key(
        600_000, "Time in ms after which a subscription known from pulls alone is dropped.", at_least=1, live=True
    )
    enable_register_producer: bool = key(True, "Remember the members of producer groups.", live=True)
    use_static_subscription: bool = key(False, "Take subscriptions from the configuration of the group.", live=True)
    server_load_balancer_enable: bool = key(True, "Assign queues to consumers that ask for it.", live=True)
    default_message_request_mode: str = key(
        "PULL", "How such consumers get their messages.", one_of=("PULL", "POP"), live=True
    )
    default_pop_share_queue_num: int = key(
        -1, "Further members that share a queue with POP; -1 for all.", at_least=-1, live=True
    )
    load_balance_poll_name_server_interval: int = key(
        30_000, "Time in ms between two looks at the routes of the topics that are assigned.", at_least=1
    )

    # Committed offsets
    flush_consumer_offset_interval: int = key(
        5000, "Time in ms between two times that committed offsets are stored.", at_least=1
    )
    consumer_offset_update_version_step: int = key(
        500, "Commits after which the version of the committed offsets changes.", at_least=1, live=True
    )
    delay_offset_update_version_step: int = key(
        200, "The same for the progress of delay levels.", at_least=1, live=True
    )
    use_server_side_reset_offset: bool = key(
        True, "Reset offsets in the broker; otherwise the consumers are told to.", live=True
    )
    enable_broadcast_offset_store: bool = key(True, "Keep the offsets of broadcast consumers too.", live=True)
    broadcast_offset_expire_second: int = key(
        120, "Time in s after which such an offset is dropped.", at_least=1, live=True
    )
    broadcast_offset_expire_max_second: int = key(
        300, "The same for one whose consumer is still connected.", at_least=1, live=True
    )

    # Transactions
    transaction_time_out: int = key(
        6000, "Age in ms at which an undecided message is checked first.", at_least=0, live=True
    )
    transaction_check_max: int = key(15, "Checks after which it is given up.", at_least=0, live=True)
    transaction_check_interval: int = key(30_000, "Time in ms between two rounds of checks.", at_least=1, live=True)
    transaction_op_msg_max_size: int = key(
        4096, "Bytes of decisions that are stored as one message.", at_least=1, live=True
    )
    transaction_op_batch_interval: int = key(
        3000, "Longest time in ms that a decision waits for others.", at_least=1, live=True
    )
    transaction_metric_flush_interval: int = key(
        10_000, "Time in ms between two times that counts of undecided messages are stored.", at_least=1
    )

    # POP
    pop_polling_size: int = key(1024, "POP requests held for one queue.", at_least=1, live=True)
    pop_polling_map_size: int = key(100_000, "Queues for which POP requests are held.", at_least=1)
    pop_polling_map_expire_time_seconds: int = key(
        600, "Time in s after which an unused one of them is forgotten.", at_least=1
    )
    max_pop_polling_size: int = key(100_000, "POP requests held at once.", at_least=1, live=True)
    pop_long_polling_force_notify_interval: int = key(
        800, "Messages after which a held request is woken whatever its filter.", at_least=1, live=True
    )
    revive_queue_num: int = key(8, "Queues of the topic that acknowledgements are kept in.", at_least=1)
    revive_interval: int = key(
        1000, "Time in ms between two looks for unacknowledged messages.", at_least=1, live=True
    )
    revive_max_slow: int = key(
        3, "Factor by which the looks slow down where there are none.", at_least=1, live=True
    )
    revive_scan_time: int = key(10_000, "Longest time in ms of one look.", at_least=1, live=True)
    enable_skip_long_awaiting_ack: bool = key(
        False, "Skip acknowledgements whose delivery is not found.", live=True
    )
    revive_ack_wait_ms: int = key(180_000, "Time in ms to wait for it.", at_least=1, live=True)
    enable_pop_log: bool = key(False, "Log each step of POP.", live=True)
    enable_pop_buffer_merge: bool = key(False, "Keep deliveries and acknowledgements in memory first.", live=True)
    pop_ck_stay_buffer_time: int = key(10_000, "Longest time in ms that they stay there.", at_least=1, live=True)
    pop_ck_stay_buffer_time_out: int = key(
        3000, "Time in ms before the next delivery when they are stored.", at_least=1, live=True
    )
    pop_ck_max_buffer_size: int = key(200_000, "Deliveries kept in memory.", at_least=1, live=True)
    pop_ck_offset_max_queue_size: int = key(
        20_000, "Commits of one queue that wait in memory.", at_least=1, live=True
    )
    enable_pop_batch_ack: bool = key(False, "Store acknowledgements from memory in batches.", live=True)
    append_ack_async: bool = key(False, "Answer an acknowledgement before it is stored.", live=True)
    append_ck_async: bool = key(False, "Answer a POP request before its delivery is stored.", live=True)
    skip_when_ck_re_put_reach_max_times: bool = key(
        False,
        "Give up a delivery that was stored again 17 times.",
        name="skipWhenCKRePutReachMaxTimes",
        live=True,
    )
    enable_notify_before_pop_calculate_lag: bool = key(
        True, "Wake held requests before the lag is computed.", live=True
    )
    enable_notify_after_pop_order_lock_release: bool = key(
        True, "Wake held requests when an ordered queue is free again.", live=True
    )
    init_pop_offset_by_check_msg_in_mem: bool = key(
        True, "New groups begin with the first message where it is recent.", live=True
    )
    enable_retry_topic_v2: bool = key(
        False, "Separate group and topic by + in the names of retry topics.", live=True
    )
    retrieve_message_from_pop_retry_topic_v1: bool = key(
        True, "Read retry topics with the older names too.", live=True
    )
    pop_from_retry_probability: int = key(
        20, "Percent of POP requests that read the retry topic first.", at_least=0, at_most=100, live=True
    )
    pop_response_return_actual_retry_topic: bool = key(
        False, "Name the retry topic in answers, not the topic.", live=True
    )
    enable_pop_message_threshold: bool = key(
        False, "Limit the delivered, unacknowledged messages of a queue.", live=True
    )
    pop_inflight_message_threshold: int = key(10_000, "This limit.", at_least=1, live=True)
    recall_message_enable: bool = key(False, "Allow recalling messages that are not yet due.", live=True)
    allow_recall_when_broker_not_writeable: bool = key(
        True, "Allow it also where brokerPermission forbids writing.", live=True
    )

    # Slaves
    sync_broker_member_group_period: int = key(
        1000, "Time in ms between two looks for the other brokers of this name.", at_least=1
    )
    enable_slave_acting_master: bool = key(False, "A slave stands in for a lost master where it can.")
    enable_remote_escape: bool = key(
        False, "A slave that stands in delivers delayed messages through another broker.", live=True
    )
    skip_pre_online: bool = key(False, "Start without looking for a master or slave to catch up with.")
    lock_in_strict_mode: bool = key(False, "Lock ordered queues on the slaves too.", live=True)
    compatible_with_old_name_srv: bool = key(
        True, "Use only requests that name servers of version 4 know.", live=True
    )
    enable_split_metadata: bool = key(True, "Give slaves topics and groups in parts.", live=True)
    split_metadata_size: int = key(2000, "Entries of one part.", at_least=1, live=True)

    # Statistics and metrics
    metrics_port: int = key(0, "Port of the Prometheus endpoint; 0 for none.", at_least=0, at_most=65535)
    metrics_bind_address: str = key("0.0.0.0", "Address that the Prometheus endpoint listens on.")
    enable_detail_stat: bool = key(True, "Keep statistics of each queue and group.", live=True)
    auto_delete_unused_stats: bool = key(
        True, "Drop the statistics of topics and groups that are deleted.", live=True
    )
    max_stats_idle_time_in_minutes: int = key(
        -1,
        "Time in minutes without a count after which statistics are dropped; -1 for never.",
        at_least=-1,
        live=True,
    )
    enable_lmq_stats: bool = key(False, "Keep statistics of light message queues.", live=True)
    estimate_accumulation: bool = key(
        True, "Estimate from a sample how many waiting messages pass a filter.", live=True
    )

    # Read by nothing in Apache RocketMQ either
    flush_consumer_offset_history_interval: int = no_effect(60_000, "Time in ms between two copies of offsets.")
    high_speed_mode: bool = no_effect(False, "An old switch.")
    clean_offline_broker_interval: int = no_effect(30_000, "Time in ms between two looks for stopped brokers.")
    acl_enable: bool = no_effect(False, "Access control of version 4.")

    # Addresses, places and plug-ins of Java's broker
    rocketmq_home: str | None = no_effect(None, "Directory of the installation.")
    message_store_plug_in: str = no_effect("", "Classes that wrap the store.")
    fetch_name_srv_addr_by_dns_lookup: bool = no_effect(
        False, "Look up every name of namesrvAddr again and again, as is always done here when connecting."
    )
    fetch_namesrv_addr_by_address_server: bool = no_effect(False, "Ask a web server for the name servers.")
    fetch_namesrv_addr_interval: int = no_effect(10_000, "Time in ms between two times it is asked.")
    update_name_server_addr_period: int = no_effect(120_000, "Time in ms between two looks at namesrvAddr.")
    is_broker_container: bool = no_effect(False, "The process holds several brokers.")
    is_in_broker_container: bool = no_effect(False, "This broker is one of several in a process.")
    isolate_log_enable: bool = no_effect(False, "Write a log of its own for each broker of a process.")
    transfer_msg_by_heap: bool = no_effect(True, "Copy messages before they are sent; here they never are.")
    enable_net_work_flow_control: bool = no_effect(False, "Drop answers to slow clients; see outputSoftLimitBytes.")
    async_send_enable: bool = no_effect(True, "Serve other requests while a send waits, as is always done here.")
    enable_fast_channel_event_process: bool = no_effect(
        False, "Find the groups of a closed connection by an index, as is always done here."
    )
    print_channel_groups: bool = no_effect(False, "Log the groups of a closed connection.")
    print_channel_groups_min_num: int = no_effect(5, "Groups from which they are logged.")
    config_manager_version: str = no_effect("v1", "Keep tables in files or in RocksDB; here they are files.")
    recover_concurrently: bool = no_effect(False, "Recover consume queues in several threads.")

    # Threads and their queues: Java's defaults on two processors
    send_message_thread_pool_nums: int = no_effect(2, "Threads that serve sends.")
    put_message_future_thread_pool_nums: int = no_effect(2, "Threads that answer sends.")
    pull_message_thread_pool_nums: int = no_effect(20, "Threads that serve pulls.")
    lite_pull_message_thread_pool_nums: int = no_effect(20, "Threads that serve lite pulls.")
    ack_message_thread_pool_nums: int = no_effect(16, "Threads that serve acknowledgements.")
    process_reply_message_thread_pool_nums: int = no_effect(20, "Threads that serve replies.")
    query_message_thread_pool_nums: int = no_effect(10, "Threads that serve queries.")
    admin_broker_thread_pool_nums: int = no_effect(16, "Threads that serve tools.")
    client_manage_thread_pool_nums: int = no_effect(32, "Threads that serve clients that leave.")
    consumer_manage_thread_pool_nums: int = no_effect(32, "Threads that serve committed offsets.")
    load_balance_processor_thread_pool_nums: int = no_effect(32, "Threads that assign queues.")
    heartbeat_thread_pool_nums: int = no_effect(2, "Threads that serve heartbeats.")
    end_transaction_thread_pool_nums: int = no_effect(12, "Threads that end transactions.")
    recover_thread_pool_nums: int = no_effect(32, "Threads that recover consume queues.")
    send_thread_pool_queue_capacity: int = no_effect(10_000, "Sends that may wait.")
    put_thread_pool_queue_capacity: int = no_effect(10_000, "Answers to sends that may wait.")
    pull_thread_pool_queue_capacity: int = no_effect(100_000, "Pulls that may wait.")
    lite_pull_thread_pool_queue_capacity: int = no_effect(100_000, "Lite pulls that may wait.")
    ack_thread_pool_queue_capacity: int = no_effect(100_000, "Acknowledgements that may wait.")
    reply_thread_pool_queue_capacity: int = no_effect(10_000, "Replies that may wait.")
    query_thread_pool_queue_capacity: int = no_effect(20_000, "Queries that may wait.")
    client_manager_thread_pool_queue_capacity: int = no_effect(1_000_000, "Clients that may wait to leave.")
    consumer_manager_thread_pool_queue_capacity: int = no_effect(1_000_000, "Requests for offsets that may wait.")
    heartbeat_thread_pool_queue_capacity: int = no_effect(50_000, "Heartbeats that may wait.")
    end_transaction_pool_queue_capacity: int = no_effect(100_000, "Ends of transactions that may wait.")
    admin_broker_thread_pool_queue_capacity: int = no_effect(10_000, "Requests of tools that may wait.")
    load_balance_thread_pool_queue_capacity: int = no_effect(100_000, "Assignments that may wait.")
    wait_time_mills_in_pull_queue: int = no_effect(5000, "Time in ms that a pull may wait.")
    wait_time_mills_in_lite_pull_queue: int = no_effect(5000, "Time in ms that a lite pull may wait.")
    wait_time_mills_in_heartbeat_queue: int = no_effect(31_000, "Time in ms that a heartbeat may wait.")
    wait_time_mills_in_transaction_queue: int = no_effect(3000, "Time in ms that an end may wait.")
    wait_time_mills_in_ack_queue: int = no_effect(3000, "Time in ms that an acknowledgement may wait.")
    wait_time_mills_in_admin_broker_queue: int = no_effect(5000, "Time in ms that a tool may wait.")

    # The controller
    enable_controller_mode: bool = no_effect(False, "Controller: let it choose the master.")
    controller_addr: str = no_effect("", "Controller: addresses.")
    fetch_controller_addr_by_dns_lookup: bool = no_effect(False, "Controller: look its name up.")
    sync_broker_metadata_period: int = no_effect(5000, "Controller: time in ms between two looks at the roles.")
    check_sync_state_set_period: int = no_effect(5000, "Controller: time in ms between two looks at replicas.")
    sync_controller_metadata_period: int = no_effect(10_000, "Controller: time in ms between two looks for it.")
    controller_heart_beat_timeout_mills: int = no_effect(10_000, "Controller: time in ms until a broker is lost.")
    broker_election_priority: int = no_effect(INT_MAX, "Controller: the smallest is chosen.")

    # POP in RocksDB
    pop_consumer_fs_service_init: bool = no_effect(
        True, "Keep acknowledgements in a topic, as is always done here.", name="popConsumerFSServiceInit"
    )
    pop_consumer_kv_service_init: bool = no_effect(
        False, "RocksDB: prepare acknowledgements.", name="popConsumerKVServiceInit"
    )
    pop_consumer_kv_service_enable: bool = no_effect(
        False, "RocksDB: keep acknowledgements there.", name="popConsumerKVServiceEnable"
    )
    pop_consumer_kv_service_log: bool = no_effect(
        False, "RocksDB: log acknowledgements.", name="popConsumerKVServiceLog"
    )
    pop_revive_max_return_size_per_read: int = no_effect(16_384, "RocksDB: deliveries of one look.")
    pop_revive_max_attempt_times: int = no_effect(16, "RocksDB: attempts to deliver again.")

    # Slowing down those who read old messages
    cold_ctr_strategy_enable: bool = no_effect(False, "Adapt the limits of coldDataFlowControlEnable.")
    use_pid_cold_ctr_strategy: bool = no_effect(True, "Adapt them by a PID loop.", name="usePIDColdCtrStrategy")
    cg_cold_read_threshold: int = no_effect(3 << 20, "Bytes that a group may read.")
    global_cold_read_threshold: int = no_effect(100 << 20, "Bytes that all groups may read.")

    # Billing, and the exporters of Java's metrics
    account_stats_enable: bool = no_effect(True, "Keep statistics for billing.")
    account_stats_print_zero_values: bool = no_effect(True, "Log those that are 0.")
    commercial_base_count: int = no_effect(1, "Count of a billed message.")
    commercial_size_per_msg: int = no_effect(4096, "Bytes of a billed message.")
    metrics_exporter_type: str = no_effect("DISABLE", "Where metrics go; see metricsPort.")
    metrics_otel_cardinality_limit: int = no_effect(50_000, "Most series of a metric.")
    metrics_grpc_exporter_target: str = no_effect("", "OpenTelemetry: address.")
    metrics_grpc_exporter_header: str = no_effect("", "OpenTelemetry: headers.")
    metric_grpc_exporter_time_out_in_mills: int = no_effect(3000, "OpenTelemetry: time-out in ms.")
    metric_grpc_exporter_interval_in_mills: int = no_effect(
        60_000, "OpenTelemetry: time in ms between two exports."
    )
    metric_logging_exporter_interval_in_mills: int = no_effect(10_000, "Time in ms between two logged metrics.")
    metrics_prom_exporter_port: int = no_effect(5557, "Port for Prometheus; see metricsPort.")
    metrics_prom_exporter_host: str = no_effect("", "Address for Prometheus; see metricsBindAddress.")
    metrics_label: str = no_effect("", "Labels added to every metric.")
    metrics_in_delta: bool = no_effect(False, "Export differences.")
    enable_remoting_metrics: bool = no_effect(True, "Measure requests.")
    enable_message_store_metrics: bool = no_effect(True, "Measure the store.")
    enable_pop_metrics: bool = no_effect(True, "Measure POP.")
    enable_connection_metrics: bool = no_effect(True, "Measure connections.")
    enable_transaction_metrics: bool = no_effect(True, "Measure transactions.")
    enable_stats_metrics: bool = no_effect(True, "Measure statistics.")
    enable_request_metrics: bool = no_effect(True, "Measure topics and groups.")
    enable_lag_and_dlq_metrics: bool = no_effect(True, "Measure lag and dead letters.")

    # Known to Apache RocketMQ 4.9 only
    filter_server_nums: int = no_effect(0, "Processes that filter by Java classes.")
    max_delay_time: int = no_effect(40, "An old limit.")
    commercial_enable: bool = no_effect(True, "Keep statistics for billing.")
    commercial_big_count: int = no_effect(1, "Count of a large billed message.")
    commercial_timer_count: int = no_effect(1, "Count of a billed timer message.")
    commercial_trans_count: int = no_effect(1, "Count of a billed transaction.")
    ha_slave_fallbehind_max: int = no_effect(256 << 20, "Former name of haMaxGapNotInSync.")
    is_enable_batch_push: bool = no_effect(False, "Former name of enableBatchPush.")

    # Outgoing connections of Java's broker
    client_callback_executor_threads: int = no_effect(2, "Threads that take answers.")
    client_pooled_byte_buf_allocator_enable: bool = no_effect(False, "Take buffers from a pool.")
    disable_callback_executor: bool = no_effect(False, "Take answers without such threads.")
    disable_netty_worker_group: bool = no_effect(False, "Encode and decode without threads for it.")
    enable_reconnect_for_go_away: bool = no_effect(True, "Connect again after GO_AWAY.")
    max_reconnect_interval_time_seconds: int = no_effect(60, "Longest time in s between two attempts.")
    is_scan_available_name_srv: bool = no_effect(True, "Look for name servers that do not answer.")
    socks_proxy_config: str = no_effect("{}", "Proxies.")

    def __post_init__(self) -> None:
        if self.broker_name == "":
            self.broker_name = socket.gethostname() or "DEFAULT_BROKER"
        super().__post_init__()

    def check_together(self) -> None:
        for address in (self.namesrv_addr or "").split(";"):
            host, _, port = address.strip().rpartition(":")
            if address.strip() and not (host and port.isdecimal() and int(port) <= PORT_MAX):
                raise ConfigError("namesrvAddr", self.namesrv_addr, f"{address.strip()!r} is not host:port")
