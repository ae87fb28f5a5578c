"""Settings of the message store: Java's MessageStoreConfig."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rmq_core.config.settings import Settings, key, no_effect
from rmq_core.errors import ConfigError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
INT_MAX: Final = (1 << 31) - 1
"""Java keeps file sizes and entry numbers in 32 bits."""

_HOURS = re.compile(r"\s*([01]?[0-9]|2[0-3])\s*(;\s*([01]?[0-9]|2[0-3])\s*)*;?")
_DELAYS = re.compile(r"[0-9]{1,18}[smhd]( [0-9]{1,18}[smhd])*")


@dataclass(kw_only=True)
class StoreSettings(Settings):
    """The message store of a broker. Sizes are in bytes; what later versions bring is listed with its default."""

    # Where files are
    store_path_root_dir: str = key("$HOME/store", "Directory of the store.")
    store_path_commit_log: str | None = key(
        None, "Directory of the commit log, or several separated by commas; by default `commitlog` in the store."
    )
    read_only_commit_log_store_paths: str | None = key(
        None, "Directories of commit-log files that are read and never written, separated by commas."
    )

    # File sizes
    mapped_file_size_commit_log: int = key(GIB, "Size of a commit-log file.", at_least=256, at_most=INT_MAX)
    mapped_file_size_consume_queue: int = key(
        6_000_000,
        "Size of a consume-queue file; rounded up to whole entries of 20 bytes.",
        at_least=20,
        at_most=INT_MAX,
    )
    mapped_file_size_consume_queue_ext: int = key(
        48 * MIB, "Size of a file of consumequeue_ext.", at_least=KIB, at_most=INT_MAX
    )
    mapper_file_size_batch_consume_queue: int = key(
        13_800_000,
        "Size of a batch consume-queue file; rounded up to whole entries of 46 bytes.",
        at_least=46,
        at_most=INT_MAX,
    )

    # Writing
    flush_disk_type: str = key(
        "ASYNC_FLUSH",
        "SYNC_FLUSH answers a send when its message is on disk, ASYNC_FLUSH when it is written.",
        one_of=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    sync_flush_timeout: int = key(
        5000, "Longest time in ms that a send waits for its flush; then FLUSH_DISK_TIMEOUT.", at_least=1, live=True
    )
    max_message_size: int = key(4 * MIB, "Longest body of a message.", at_least=1, at_most=GIB, live=True)
    auto_message_version_on_topic_len: bool = key(
        True, "Store messages of topics longer than 127 bytes as version 2; otherwise they are refused.", live=True
    )
    enabled_append_prop_crc: bool = key(
        False, "Append a checksum of the whole record to its properties.", name="enabledAppendPropCRC"
    )
    max_async_put_message_requests: int = key(
        5000, "Sends that may wait for a flush or for replicas at once.", at_least=1, live=True
    )
    os_page_cache_busy_time_out_mills: int = key(
        1000, "Time in ms that a write may take before sends are refused as busy.", at_least=1, live=True
    )

    # Flushing the commit log
    flush_interval_commit_log: int = key(
        500, "Time in ms between two flushes of ASYNC_FLUSH.", at_least=1, live=True
    )
    flush_commit_log_timed: bool = key(
        True, "Keep flushIntervalCommitLog exactly; otherwise a flush may be woken earlier.", live=True
    )
    flush_commit_log_least_pages: int = key(
        4, "Pages of 4 KiB that have to be unflushed before ASYNC_FLUSH flushes.", at_least=0, live=True
    )
    flush_commit_log_thorough_interval: int = key(
        10_000, "Time in ms after which ASYNC_FLUSH flushes whatever there is.", at_least=1, live=True
    )
    wake_flush_when_put_message: bool = key(False, "Wake the flush of ASYNC_FLUSH with each write.", live=True)
    transient_store_pool_enable: bool = key(
        False, "Keep new messages in memory until a commit step writes them; needs ASYNC_FLUSH."
    )
    commit_interval_commit_log: int = key(
        200, "Time in ms between two commit steps with transientStorePoolEnable.", at_least=1, live=True
    )
    commit_commit_log_least_pages: int = key(
        4, "Pages of 4 KiB that have to be waiting before a commit step writes.", at_least=0, live=True
    )
    commit_commit_log_thorough_interval: int = key(
        200, "Time in ms after which a commit step writes whatever there is.", at_least=1, live=True
    )
    wake_commit_when_put_message: bool = key(True, "Wake the commit step with each message.", live=True)

    # Consume queues
    flush_interval_consume_queue: int = key(
        1000, "Time in ms between two flushes of the consume queues.", at_least=1, live=True
    )
    flush_consume_queue_least_pages: int = key(
        2, "Pages of 4 KiB that have to be unflushed before a consume queue is flushed.", at_least=0, live=True
    )
    flush_consume_queue_thorough_interval: int = key(
        60_000, "Time in ms after which every consume queue is flushed.", at_least=1, live=True
    )
    enable_consume_queue_ext: bool = key(
        False, "Keep filter bits and store time of each message in consumequeue_ext."
    )
    bit_map_length_consume_queue_ext: int = key(
        64,
        "Filter bits of a message in consumequeue_ext; a broker that computes filter bits sets the length of its "
        "Bloom filter here.",
        at_least=0,
        at_most=8 * 32 * KIB,
    )
    enable_lmq: bool = key(False, "Light message queues: names that begin with %LMQ% need no topic.")
    enable_multi_dispatch: bool = key(
        False, "Put messages with the property INNER_MULTI_DISPATCH into the light message queues it names too."
    )
    read_un_committed: bool = key(
        False, "Show messages to readers before they are flushed or replicated as configured."
    )

    # Reading
    max_transfer_bytes_on_message_in_memory: int = key(
        256 * KIB, "Bytes that a pull of recent messages returns.", at_least=1, live=True
    )
    max_transfer_count_on_message_in_memory: int = key(
        32, "Messages that a pull of recent messages returns.", at_least=1, live=True
    )
    max_transfer_bytes_on_message_in_disk: int = key(
        64 * KIB, "Bytes that a pull of older messages returns.", at_least=1, live=True
    )
    max_transfer_count_on_message_in_disk: int = key(
        8, "Messages that a pull of older messages returns.", at_least=1, live=True
    )
    max_transfer_bytes_on_bulk_pull: int = key(
        8 * MIB,
        "Bytes that a pull returns that asks for more than 32 messages: the other limits protect readers that do "
        "not mean so many.",
        at_least=1,
        live=True,
    )
    access_message_in_memory_max_ratio: int = key(
        40,
        "Percent of the machine's memory: messages that near to the log's end are recent.",
        at_least=0,
        live=True,
    )
    max_filter_message_size: int = key(
        16_000, "Bytes of a consume queue that one pull searches for matching messages.", at_least=20, live=True
    )
    travel_cq_file_num_when_get_message: int = key(
        1, "Consume-queue files that one pull searches.", at_least=1, live=True
    )
    max_consume_queue_scan: int = key(
        20_000, "Entries of a consume queue that are read to estimate a number of messages.", at_least=1, live=True
    )
    sample_count_threshold: int = key(
        5000, "Messages found after which an estimate is made from a sample.", at_least=1, live=True
    )
    disk_fall_recorded: bool = key(True, "Record how far behind the log's end groups read.", live=True)
    offset_check_in_slave: bool = key(
        False, "Correct offsets out of range on a slave too; otherwise only a master does.", live=True
    )

    # Index of keys
    message_index_enable: bool = key(True, "Index messages by their keys.")
    max_hash_slot_num: int = key(5_000_000, "Hash slots of an index file.", at_least=1, at_most=INT_MAX)
    max_index_num: int = key(20_000_000, "Entries of an index file.", at_least=2, at_most=INT_MAX)
    max_msgs_num_batch: int = key(64, "Messages that a query by key returns at most.", at_least=1, live=True)
    default_query_max_num: int = key(
        32, "Messages that a query by key returns where it does not say.", at_least=1, live=True
    )
    message_index_safe: bool = key(False, "Recovery begins early enough to repair the index too.")

    # Recovery
    check_crc_on_recover: bool = key(True, "Check the checksum of each body in recovery.", name="checkCRCOnRecover")
    force_verify_prop_crc: bool = key(
        False, "Recovery refuses records without a right enabledAppendPropCRC.", name="forceVerifyPropCRC"
    )

    # Deleting
    file_reserved_time: int = key(
        72, "Age in hours at which a commit-log file may be deleted.", at_least=0, live=True
    )
    delete_when: str = key(
        "04", "Hours of the day in which old files are deleted, separated by semicolons.", live=True
    )
    clean_resource_interval: int = key(
        10_000, "Time in ms between two searches for files to delete.", at_least=1, live=True
    )
    delete_file_batch_max: int = key(10, "Commit-log files deleted at once.", at_least=1, live=True)
    delete_commit_log_files_interval: int = key(
        100, "Time in ms between two deletions of commit-log files.", at_least=0, live=True
    )
    delete_consume_queue_files_interval: int = key(
        100, "Time in ms between two deletions of consume-queue files.", at_least=0, live=True
    )
    disk_max_used_space_ratio: int = key(
        75,
        "Percent of the disk in use above which old files are deleted at any hour; 10 to 95 count.",
        at_least=0,
        at_most=100,
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = key(
        85,
        "Percent of the disk in use above which files are deleted before their age; 30 to 85 count.",
        at_least=0,
        at_most=100,
        live=True,
    )
    disk_space_warning_level_ratio: int = key(
        90,
        "Percent of the disk in use above which sends are refused; 35 to 90 count.",
        at_least=0,
        at_most=100,
        live=True,
    )
    clean_file_forcibly_enable: bool = key(True, "Allow deleting files before their age.", live=True)
    replicas_per_disk_partition: int = key(1, "Brokers that share the disk.", at_least=1, live=True)
    logical_disk_space_clean_forcibly_threshold: float = key(
        0.8,
        "Part of its share of the disk above which a broker deletes before age, where brokers share it.",
        at_least=0,
        at_most=1,
        live=True,
    )

    # Delay levels
    message_delay_level: str = key(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of level 1, 2 and so on: numbers with s, m, h or d.",
    )
    flush_delay_offset_interval: int = key(
        10_000, "Longest time in ms between two times that delayOffset.json is stored.", at_least=1
    )
    enable_schedule_message_stats: bool = key(True, "Count delayed messages in the statistics.", live=True)
    enable_schedule_async_deliver: bool = no_effect(False, "Deliver delayed messages without waiting for each.")
    schedule_async_deliver_max_pending_limit: int = no_effect(2000, "Deliveries of one level under way at once.")
    schedule_async_deliver_max_resend_num2_blocked: int = no_effect(
        3, "Failed deliveries after which a level waits."
    )

    # Timer messages
    timer_wheel_enable: bool = key(True, "Timer messages.")
    mapped_file_size_timer_log: int = key(100 * MIB, "Size of a timer-log file.", at_least=52, at_most=INT_MAX)
    timer_precision_ms: int = key(1000, "Time in ms that one slot of the timer wheel covers.", at_least=1)
    timer_roll_window_slot: int = key(172_800, "Slots after which a timer message is rolled on.", at_least=2)
    timer_max_delay_sec: int = key(259_200, "Longest delay of a timer message in seconds.", at_least=1, live=True)
    timer_flush_interval_ms: int = key(1000, "Time in ms between two flushes of the timer files.", at_least=1)
    timer_intercept_delay_level: bool = key(False, "Send messages with a delay level through the timer.")
    timer_stop_enqueue: bool = key(False, "Pause putting messages into the timer.", live=True)
    timer_stop_dequeue: bool = key(False, "Pause delivering messages from the timer.", live=True)
    timer_skip_unknown_error: bool = key(False, "Skip timer messages that fail for an unknown reason.", live=True)
    timer_enable_retry_until_success: bool = key(
        False, "Repeat deliveries of the timer until they succeed.", live=True
    )
    timer_congest_num_each_slot: int = key(
        INT_MAX, "Messages of one slot above which timer messages are refused.", at_least=1, live=True
    )
    timer_enable_check_metrics: bool = key(True, "Count the waiting timer messages anew every day.", live=True)
    timer_check_metrics_when: str = key("05", "Hour of the day in which they are counted.", live=True)
    timer_metric_small_threshold: int = key(
        1_000_000, "Number of waiting messages of a topic below which they are counted anew.", at_least=0, live=True
    )
    timer_progress_log_interval_ms: int = key(
        10_000, "Time in ms between two log lines about the timer's progress.", at_least=1, live=True
    )
    disappear_time_after_start: int = key(
        -1,
        "Time in ms after the start in which a broker is not registered and delivers no timer messages.",
        at_least=-1,
    )

    # Compacted topics
    enable_compaction: bool = key(True, "Topics that keep only the last message of each key.")
    compaction_mapped_file_size: int = key(
        100 * MIB, "Size of a log file of compacted topics.", at_least=256, at_most=INT_MAX
    )
    compaction_cq_mapped_file_size: int = key(
        10 * MIB, "Size of a consume-queue file of compacted topics.", at_least=46, at_most=INT_MAX
    )
    compaction_schedule_internal: int = key(15 * 60_000, "Time in ms between two compactions.", at_least=1)
    max_offset_map_size: int = key(
        100 * MIB, "Memory for the keys of one compaction.", at_least=KIB, at_most=INT_MAX
    )
    compaction_thread_num: int = key(6, "Topics compacted at once.", at_least=1)

    # Replication
    broker_role: str = key(
        "ASYNC_MASTER",
        "SYNC_MASTER answers a send when enough replicas have its message, ASYNC_MASTER at once; a SLAVE copies.",
        one_of=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    )
    ha_listen_port: int = key(
        10_912,
        "Port for replicas; 0 takes a free one. A broker for which it is not set takes listenPort + 1.",
        at_least=0,
        at_most=65_535,
    )
    ha_master_address: str | None = key(
        None, "Address of the master's haListenPort; otherwise name servers tell it."
    )
    ha_send_heartbeat_interval: int = key(
        5000, "Time in ms without data after which a heartbeat is sent.", at_least=1, live=True
    )
    ha_housekeeping_interval: int = key(
        20_000, "Time in ms without data after which the connection is closed.", at_least=1, live=True
    )
    ha_transfer_batch_size: int = key(
        32 * KIB, "Bytes sent to a replica at once.", at_least=1, at_most=GIB, live=True
    )
    ha_max_gap_not_in_sync: int = key(
        256 * MIB, "Bytes by which a replica may be behind and still count as in sync.", at_least=0, live=True
    )
    ha_flow_control_enable: bool = key(False, "Limit what is sent to a replica.", live=True)
    max_ha_transfer_byte_in_second: int = key(
        100 * MIB, "Bytes sent to a replica in a second, with haFlowControlEnable.", at_least=1, live=True
    )
    slave_timeout: int = key(
        3000, "Longest time in ms that a send waits for replicas; then FLUSH_SLAVE_TIMEOUT.", at_least=1, live=True
    )
    total_replicas: int = key(1, "Replicas there are, the master included.", at_least=1, live=True)
    in_sync_replicas: int = key(
        1, "Replicas that have to have a message, the master included, with SYNC_MASTER.", at_least=1, live=True
    )
    min_in_sync_replicas: int = key(
        1, "Replicas that have to have it at least, with enableAutoInSyncReplicas.", at_least=1, live=True
    )
    enable_auto_in_sync_replicas: bool = key(False, "Wait for fewer replicas where fewer are in sync.", live=True)
    sync_master_flush_offset_when_startup: bool = key(False, "Ask the master at start up to where it has flushed.")
    max_checksum_range: int = key(
        GIB, "Longest part of the log that replicas compare by checksum.", at_least=1, live=True
    )

    # Read by nothing in Apache RocketMQ either
    max_recovery_commitlog_files: int = no_effect(30, "Commit-log files that recovery reads.")
    put_msg_index_hight_water: int = no_effect(600_000, "Messages that may wait for the index.")
    put_message_timeout: int = no_effect(8000, "Longest time in ms that a send waits; see syncFlushTimeout.")
    max_lmq_consume_queue_num: int = no_effect(20_000, "Light message queues.")
    max_batch_delete_files_num: int = no_effect(50, "Files deleted at once; see deleteFileBatchMax.")
    dispatch_cq_threads: int = no_effect(10, "Threads that fill consume queues.")
    dispatch_cq_cache_num: int = no_effect(4096, "Entries that may wait for their consume queue.")
    enable_async_reput: bool = no_effect(True, "Fill consume queues in a thread.")
    max_topic_length: int = no_effect(127, "Longest name of a topic.")
    mapped_file_swap_enable: bool = no_effect(True, "Map old files anew.")
    commit_log_force_swap_map_interval: int = no_effect(12 * 3_600_000, "Time in ms until a mapping is replaced.")
    commit_log_swap_map_interval: int = no_effect(3_600_000, "Time in ms until an unused mapping is replaced.")
    commit_log_swap_map_reserve_file_num: int = no_effect(100, "Mappings of the commit log that stay.")
    logic_queue_force_swap_map_interval: int = no_effect(12 * 3_600_000, "The same for consume queues.")
    logic_queue_swap_map_interval: int = no_effect(3_600_000, "The same for consume queues.")
    logic_queue_swap_map_reserve_file_num: int = no_effect(20, "The same for consume queues.")
    clean_swaped_map_interval: int = no_effect(300_000, "Time in ms until a replaced mapping is closed.")
    dispatch_from_sender_thread: bool = no_effect(False, "Fill consume queues while sending.")
    enable_clean_expired_offset: bool = no_effect(False, "Remove committed offsets that are no longer needed.")
    pull_batch_max_message_count: int = no_effect(160, "Messages of one pull.")
    max_slave_resend_length: int = no_effect(256 * MIB, "Bytes that are sent again to a replica.")

    # Locks, buffers, mappings and threads of Java's store
    use_reentrant_lock_when_put_message: bool = no_effect(True, "Write under a mutex instead of a spin lock.")
    use_abs_lock: bool = no_effect(False, "Write under an adaptive lock.", name="useABSLock")
    spin_lock_collision_retreat_optimal_degree: int = no_effect(1000, "Turns of a spin lock.")
    topic_queue_lock_num: int = no_effect(32, "Locks that queues share.")
    debug_lock_enable: bool = no_effect(False, "Print the stacks of threads that hold a lock for long.")
    warm_maped_file_enable: bool = no_effect(False, "Touch the pages of a new file.")
    flush_least_pages_when_warm_maped_file: int = no_effect(4096, "Pages that are touched between two flushes.")
    write_without_mmap: bool = no_effect(False, "Write files without mapping them, as is always done here.")
    put_consume_queue_data_by_file_channel: bool = no_effect(
        True, "Write consume queues without mapping them, as is always done here."
    )
    transient_store_pool_size: int = no_effect(5, "Number of write buffers.")
    fast_fail_if_no_buffer_in_store_pool: bool = no_effect(False, "Refuse a message where no write buffer is free.")
    destroy_maped_file_interval_forcibly: int = no_effect(
        120_000, "Time in ms after which a deleted file is taken from its readers."
    )
    redelete_hanged_file_interval: int = no_effect(120_000, "Time in ms after which a failed deletion is repeated.")
    enable_running_flags_in_flush: bool = no_effect(False, "Stop flushing when the store cannot be written.")
    enable_build_consume_queue_concurrently: bool = no_effect(False, "Fill consume queues in several threads.")
    batch_dispatch_request_thread_pool_nums: int = no_effect(16, "Threads that fill consume queues.")
    recheck_reput_offset_from_cq: bool = no_effect(
        False, "Begin to fill consume queues where they end, as is always done here."
    )
    correct_logic_min_offset_sleep_interval: int = no_effect(
        1, "Time in ms between two corrections of a queue's start."
    )
    correct_logic_min_offset_force_interval: int = no_effect(
        300_000, "Time in ms after which a queue's start is corrected; here it is when files are deleted."
    )
    search_bcq_by_cache_enable: bool = no_effect(True, "Keep the files of batch consume queues in a cache.")
    enable_log_consume_queue_repeatedly_build_when_recover: bool = no_effect(
        False, "Log entries that recovery finds a second time."
    )
    timer_get_message_thread_num: int = no_effect(3, "Threads that read timer messages.")
    timer_put_message_thread_num: int = no_effect(3, "Threads that deliver timer messages.")
    timer_enable_disruptor: bool = no_effect(False, "Use a disruptor as queue of the timer.")
    timer_warm_enable: bool = no_effect(False, "Read timer messages ahead.")
    cold_data_flow_control_enable: bool = no_effect(False, "Slow down groups that read old messages.")
    cold_data_scan_enable: bool = no_effect(False, "Ask the system which pages are in memory.")
    data_read_ahead_enable: bool = no_effect(True, "Let the system read ahead in mappings.")
    timer_cold_data_check_interval_ms: int = no_effect(60_000, "Time in ms between two searches for cold pages.")
    sample_steps: int = no_effect(32, "Pages of which one is asked for.")
    access_message_in_memory_hot_ratio: int = no_effect(26, "Percent of memory that is not cold.")

    # RocksDB
    store_type: str = no_effect("default", "Kind of consume queues: files or RocksDB; here they are files.")
    clean_rocks_db_dirty_cq_interval_min: int = no_effect(
        60, "RocksDB: minutes between two cleanings.", name="cleanRocksDBDirtyCQIntervalMin"
    )
    stat_rocks_db_cq_interval_sec: int = no_effect(
        10, "RocksDB: seconds between two statistics.", name="statRocksDBCQIntervalSec"
    )
    mem_table_flush_interval_ms: int = no_effect(3_600_000, "RocksDB: time in ms between two flushes.")
    real_time_persist_rocks_db_config: bool = no_effect(
        True, "RocksDB: store each change at once.", name="realTimePersistRocksDBConfig"
    )
    enable_rocks_db_log: bool = no_effect(False, "RocksDB: its own log.", name="enableRocksDBLog")
    rocksdb_cq_double_write_enable: bool = no_effect(
        False, "RocksDB: write files too.", name="rocksdbCQDoubleWriteEnable"
    )
    combine_cq_loading_cq_types: str = no_effect(
        "default;defaultRocksDB", "RocksDB: kinds of consume queues to load.", name="combineCQLoadingCQTypes"
    )
    combine_cq_prefer_cq_type: str = no_effect(
        "default", "RocksDB: kind of consume queues to read.", name="combineCQPreferCQType"
    )
    combine_assign_offset_cq_type: str = no_effect(
        "default", "RocksDB: kind of consume queues that gives offsets.", name="combineAssignOffsetCQType"
    )
    combine_cq_enable_check_self: bool = no_effect(
        False, "RocksDB: compare the kinds at start.", name="combineCQEnableCheckSelf"
    )
    combine_cq_max_extra_search_commit_log_files: int = no_effect(
        3, "RocksDB: further files that recovery reads.", name="combineCQMaxExtraSearchCommitLogFiles"
    )
    bottom_most_compression_type_for_consume_queue_store: str = no_effect(
        "zstd", "RocksDB: compression of old data."
    )
    rocksdb_compression_type: str = no_effect("lz4", "RocksDB: compression.")
    rocksdb_flush_wal_frequency: int = no_effect(1024, "RocksDB: writes between two flushes of its log.")
    rocksdb_wal_file_rolling_threshold: int = no_effect(GIB, "RocksDB: size of its log.")
    enable_accelerated_recovery: bool = no_effect(False, "RocksDB: a shorter recovery.")

    # DLedger, the controller, plug-ins
    enable_d_leger_commit_log: bool = no_effect(False, "Keep the commit log in DLedger.")
    store_path_d_ledger_commit_log: str | None = no_effect(None, "DLedger: directory of its log.")
    d_leger_group: str | None = no_effect(None, "DLedger: name of the group.")
    d_leger_peers: str | None = no_effect(None, "DLedger: members of the group.")
    d_leger_self_id: str | None = no_effect(None, "DLedger: this member.")
    preferred_leader_id: str | None = no_effect(None, "DLedger: member that leads if it can.")
    enable_batch_push: bool = no_effect(False, "DLedger: send several entries at once.")
    store_path_epoch_file: str | None = no_effect(None, "Controller: file of the epochs.")
    store_path_broker_identity: str | None = no_effect(None, "Controller: file of this broker's id.")
    all_ack_in_sync_state_set: bool = no_effect(False, "Controller: wait for every replica that is in sync.")
    ha_max_time_slave_not_catchup: int = no_effect(
        15_000, "Controller: time in ms that a replica may be behind and still be in sync."
    )
    sync_from_last_file: bool = no_effect(False, "Controller: a new replica begins with the last file.")
    async_learner: bool = no_effect(False, "Controller: this replica never counts as in sync.")
    duplication_enable: bool = no_effect(False, "Let a plug-in copy the log.")

    def check_together(self) -> None:
        index_size = 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num
        if index_size > INT_MAX:
            reason = f"makes index files of {index_size} bytes with maxHashSlotNum={self.max_hash_slot_num}"
            raise ConfigError("maxIndexNum", self.max_index_num, f"{reason}; the limit is {INT_MAX}")
        for name, hours in (
            ("deleteWhen", self.delete_when),
            ("timerCheckMetricsWhen", self.timer_check_metrics_when),
        ):
            if not _HOURS.fullmatch(hours):
                raise ConfigError(name, hours, "must be hours from 0 to 23, separated by semicolons")
        if not _DELAYS.fullmatch(self.message_delay_level):
            reason = "must be whole numbers followed by s, m, h or d, separated by single blanks"
            raise ConfigError("messageDelayLevel", self.message_delay_level, reason)
