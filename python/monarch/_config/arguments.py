"""What ``configure()`` takes, for type checkers. A test compares it with the table of keys."""

from __future__ import annotations

from typing import TypedDict

from monarch._config.transports import BindSpec, ChannelTransport, Encoding

__all__ = ["ConfigureArgs"]


class ConfigureArgs(TypedDict, total=False):
    """Keyword arguments of ``configure`` and ``configured``. Durations are text: ``"10s"``."""

    codec_max_frame_length: int
    message_delivery_timeout: str
    message_ack_time_interval: str
    message_ack_every_n_messages: int
    message_ttl_default: int
    message_latency_sampling_rate: float
    pending_actor_delivery_timeout: str
    split_max_buffer_size: int
    split_max_buffer_age: str
    stop_actor_timeout: str
    cleanup_timeout: str
    process_exit_timeout: str
    process_memory_metric_interval: str
    host_spawn_ready_timeout: str
    server_heartbeat_interval: str
    forwarder_flush_timeout: str
    terminated_snapshot_retention: int
    enable_dest_actor_reordering_buffer: bool
    sequencer_max_locked_keys: int
    default_encoding: Encoding
    stop_grace_period: str
    channel_net_rx_buffer_full_check_interval: str
    channel_tcp_keepalive_idle: str
    channel_tcp_congestion: str
    channel_reconnect_timeout: str
    default_transport: ChannelTransport | BindSpec | str
    mesh_proc_spawn_max_idle: str
    actor_spawn_max_idle: str
    proc_stop_max_idle: str
    get_proc_state_max_idle: str
    get_actor_state_max_idle: str
    supervision_watchdog_timeout: str
    mesh_orphan_timeout: str
    mesh_attach_config_timeout: str
    mesh_terminate_concurrency: int
    mesh_terminate_timeout: str
    mesh_bootstrap_enable_pdeathsig: bool
    proc_launcher_kind: str
    use_direct_spawn: bool
    max_cast_dimension_size: int
    max_cast_fanout: int
    enable_log_forwarding: bool
    enable_file_capture: bool
    tail_log_lines: int
    read_log_buffer: int
    force_file_log: bool
    prefix_with_rank: bool
    mesh_admin_addr: str
    mesh_admin_resolve_actor_timeout: str
    mesh_admin_max_concurrent_resolves: int
    mesh_admin_single_host_timeout: str
    mesh_admin_query_child_timeout: str
    mesh_admin_config_dump_bridge_timeout: str
    mesh_admin_tree_timeout: str
    mesh_admin_pyspy_timeout: str
    mesh_admin_pyspy_bridge_timeout: str
    mesh_admin_pyspy_client_timeout: str
    mesh_admin_pyspy_max_profile_duration: str
    pyspy_bin: str
    small_write_threshold: int
    enable_unawaited_python_task_traceback: bool
    tokio_worker_threads: int | None
    host_lease: str
    stopped_rank_lease: str
    rdma_encrypt: bool
    enable_otel_tracing: bool
    enable_otel_metrics: bool
    enable_recorder_tracing: bool
    enable_sqlite_tracing: bool
    file_log_level: str
    otel_metric_export_interval: str
    scuba_log_enter_exit: bool
    monarch_log_suffix: str
    rdma_max_chunk_size_mb: int
    rdma_allow_tcp_fallback: bool
    rdma_disable_ibverbs: bool
    rdma_tcp_fallback_parallelism: int
    rdma_qp_init_timeout: str
    rdma_ibverbs_target: str
    rdma_peer_device_affinity: str
    rdma_max_nics_per_buffer: int | None
    rdma_min_stripe_size_kb: int
    rdma_qps_per_cq: int
    rdma_qps_per_peer: int
    rdma_cq_poller_per_device: bool
    rdma_host_odp: bool
    rdma_runtime_worker_threads: int
