"""Every setting of the server, read once from the environment.

Each field has its unit in its name and its reason in its text. `workers/configuration.py` builds one `Settings`, which
is passed on; no other module reads the environment. Variables carry the prefix `NODUS_SERVER_`
(`NODUS_SERVER_DATABASE_URL`), so they never meet the clients' own `NODUS_API_URL` and `NODUS_API_KEY`.
Those of the HTTP edge are in `edge_settings.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, IPvAnyNetwork, SecretStr
from pydantic_settings import SettingsConfigDict

from controlplane.audit_settings import AuditSettings
from controlplane.edge_settings import EdgeSettings
from controlplane.funding_settings import FundingSettings
from controlplane.login_settings import LoginSettings
from controlplane.metrics_settings import MetricsSettings
from controlplane.oidc_settings import OidcSettings


class Settings(EdgeSettings, FundingSettings, AuditSettings, LoginSettings, OidcSettings, MetricsSettings):
    """Settings of all processes; each uses the part it needs."""

    model_config = SettingsConfigDict(env_prefix="NODUS_SERVER_", frozen=True, extra="ignore")

    # Engines
    database_url: str = Field(
        default="postgresql://nodus@127.0.0.1:5432/nodus", description="PostgreSQL, as postgresql://user@host:port/db."
    )
    database_pool_size: int = Field(default=8, description="Connections a process; one is the writer's, one listens.")
    temporal_address: str = Field(default="127.0.0.1:7233", description="host:port of the Temporal frontend.")
    temporal_namespace: str = Field(default="default", description="Temporal namespace of all workflows.")
    data_dir: Path = Field(default=Path("var"), description="Where this host keeps environments, blobs and sockets.")
    secret_key: SecretStr = Field(
        default=SecretStr(""),
        description="32 random bytes in hex: keys token hashes, signed URLs and Secrets at rest; lose it, lose them.",
    )

    secrets_key: SecretStr = Field(
        default=SecretStr(""),
        description="32 random bytes in hex: seals Secrets at rest instead of `secret_key`, so that it can be changed.",
    )
    secrets_older_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Earlier values of `secrets_key`, in a JSON list; needed until all is sealed with the present one.",
    )

    failpoints_dir: Path | None = Field(
        default=None, description="Folder that names points at which this process dies, for tests (docs/faults.md)."
    )

    switch_poll_seconds: float = Field(
        default=0.5,
        gt=0,
        description="Between two looks at the operator's switches, which work everywhere after that.",
    )

    # Identity
    token_cache_seconds: float = Field(
        default=1.0, description="How long a looked-up credential is trusted; a revoked one works this much longer."
    )
    token_cache_entries_max: int = Field(default=10_000, description="Known, and again unknown, credentials in memory.")

    # Store
    flush_mutations_max: int = Field(default=128, description="Mutations a commit; more would delay the first of them.")
    flush_keys_max: int = Field(default=4_000, description="Objects a commit; one large mutation may exceed it.")
    write_retry_seconds: float = Field(default=10.0, description="How long a write waits for an absent database.")
    write_queue_max: int = Field(default=10_000, description="Waiting mutations a process; beyond it writers get 503.")
    ring_events_max: int = Field(default=50_000, description="Changes kept in memory for watchers of this process.")
    ring_bytes_max: int = Field(default=64 << 20, description="Documents of those changes; the older ones leave.")
    change_poll_seconds: float = Field(default=0.5, description="Safety net for a lost notification; costs one query.")
    change_stale_seconds: float = Field(
        default=5.0, description="A process that has not looked for changes for this long is not ready to serve."
    )
    change_retention_hours: int = Field(default=24, description="How far back a watch may resume.")
    idempotency_hours: int = Field(default=24, description="How long a key replays its first answer; the protocol's.")
    lock_timeout_milliseconds: int = Field(default=5_000, description="Wait for the revision counter before giving up.")

    # Calls
    inline_bytes_max: int = Field(default=65_536, description="Decoded inline payload; the protocol's limit.")
    batch_calls_max: int = Field(default=1_000, description="Calls a batch; the protocol's limit.")
    lease_seconds: int = Field(default=75, description="Two long polls and 15 s since an attempt's last claim.")
    claim_wait_seconds_max: int = Field(default=30, description="Longest long poll; the worker reads for 45 s.")
    draining_claim_seconds: float = Field(
        default=1.0, description="Longest long poll of a worker that is to leave: it looks for its signal in between."
    )
    claim_linger_seconds: float = Field(
        default=0.1,
        description="How long the report of a worker's last call waits for a next one, so that one claim carries both.",
    )
    deadline_grace_seconds: int = Field(default=60, description="After a deadline the worker should have reported.")
    dispatch_calls_max: int = Field(
        default=1_000, description="Calls of one Function that one commit hands out; more would delay the commit."
    )
    call_timeout_default: str = Field(default="300s", description="For a call stored without one; the protocol's.")
    deadline_early_seconds: float = Field(
        default=2.0, description="A worker's DeadlineExceeded this long before the deadline is a TimeoutError raised."
    )
    retry_jitter_fraction: float = Field(
        default=0.1, description="How much of itself a retry's delay may be lengthened by, so that retries spread."
    )
    cancel_grace_seconds: int = Field(
        default=30, description="A coroutine may clean up for this long after a cancel; then its worker is killed."
    )
    cancel_settle_seconds: float = Field(
        default=0.3,
        description="A thread may go on for this long after its worker let go of it; then the worker takes no more.",
    )
    cancelled_thread_seconds: float = Field(
        default=1.0,
        description="The worker is killed this much later: a thread does not hear of a cancel, so time alone is of no "
        "use to it, and with what comes before and after, a waiter learns the end within the 5 s that it is promised.",
    )
    call_retention_days: int = Field(default=7, description="Finished calls are kept this long; the protocol's.")
    app_expiry_seconds: int = Field(default=120, description="An ephemeral App not renewed for this long is deleted.")
    call_dispatches_kept_max: int = Field(
        default=100, description="Newest dispatches kept of a call; retries and recoveries allow 43 of them."
    )
    error_message_bytes_max: int = Field(default=4_096, description="Stored exception message; longer ones are cut.")
    error_traceback_bytes_max: int = Field(default=65_536, description="Stored traceback; longer ones are cut.")
    engine_lag_seconds_max: int = Field(
        default=60,
        description="A call that was handed out may lack its workflow for this long (lag budget); then only calls with "
        "one are handed out.",
    )
    engine_lag_calls_max: int = Field(
        default=2_000, description="As many calls that were handed out may lack their workflows (lag budget)."
    )
    open_workflows_max: int = Field(
        default=1_000,
        description="Calls that wait for a worker get their workflows while fewer than this are open; until then they "
        "are rows. Half of what a control process keeps in memory, so that those of calls that run need no replay.",
    )
    workflow_starts_in_flight_max: int = Field(
        default=8, description="Workflows on their way to their calls; a few saturate two cores, more only queue there."
    )
    engine_answer_seconds_max: float = Field(
        default=5.0, description="What the engine has not begun after this long is said to wait for it."
    )
    late_reports_max: int = Field(
        default=20, description="Late reports of one worker recorded in a minute; it may be hostile and repeat them."
    )
    late_report_workers_max: int = Field(
        default=1_000, description="Workers whose late reports a process counts; the one heard of least goes first."
    )
    wait_message_settle_seconds: float = Field(
        default=1.0, description="A reason to wait must last this long before calls are told of it."
    )
    wait_message_seconds: float = Field(
        default=5.0, description="Between two looks at what the calls at the head of one queue say."
    )
    wait_message_sessions_max: int = Field(
        default=16, description="Sessions of a queue whose first calls are told why they wait; each costs a probe."
    )
    wait_message_calls_max: int = Field(
        default=4, description="Calls of each such session that are told; those behind are told when they come forward."
    )
    wait_message_late_calls_max: int = Field(
        default=64, description="Calls told at once that the engine does not answer; each is a write."
    )
    wait_calls_counted_max: int = Field(
        default=1_000, description="Calls that `/wait` counts before one; a longer queue is told as more than this."
    )
    wait_sessions_counted_max: int = Field(
        default=250, description="Sessions that `/wait` looks at; each costs an index probe or two."
    )
    worker_rate_usd_per_hour: str = Field(
        default="0", description="Price of one worker in USD an hour, a decimal string; without one calls are free."
    )

    # Workers
    node_name: str = Field(default="local", description="Name of this host; its task queue is node/<name>.")
    node_token: SecretStr = Field(default=SecretStr(""), description="Credential of nodes towards the API.")
    api_url: str = Field(default="http://127.0.0.1:8080", description="Where a node reaches the API.")
    workers_max: int = Field(default=32, description="Workers this host runs at once, whatever Functions ask for.")
    fair_share_grace_seconds: float = Field(
        default=10.0, description="A project with fewer workers waits this long before another gives it places."
    )
    worker_start_seconds_max: int = Field(
        default=300, description="From process start to first claim, enter() included."
    )
    start_failures_max: int = Field(default=5, description="Consecutive failed starts before a Function is Failed.")
    warm_workers_max: int = Field(
        default=2,
        ge=0,
        description="Workers of a host that wait, confined and started, before anybody asks: each spares a second and "
        "holds about 50 MB.",
    )
    drain_seconds: int = Field(default=30, description="Between SIGTERM and SIGKILL once nothing runs on the worker.")
    node_stop_seconds: int = Field(
        default=10, description="A stopping node lets running calls go on this long; the killed ones run elsewhere."
    )
    worker_scratch_bytes_max: int = Field(
        default=1 << 30, description="Size of each of a worker's code, workspace and temporary folders; all in memory."
    )
    isolation_min: Literal["none", "basic", "standard", "strong"] = Field(
        default="none",
        description="A node isolated less than this refuses to start. Strong: a user for each worker and hard limits, "
        "by root and control groups; demand it when strangers share a host. Standard is one of these, basic neither; "
        "none, which no node has unless `unsandboxed` says so, is no sandbox at all.",
    )
    unsandboxed: bool = Field(
        default=False,
        description="Run workers as plain processes, which see the files and the network of their host: where no "
        "sandbox can be made, and all code is the operator's own.",
    )
    unsandboxed_dir: Path = Field(
        default=Path("/var/lib/nodus-server"),
        description="Where a node of root has the folders of such workers: all users must be able to pass through it.",
    )
    accelerators_offered: tuple[str, ...] = Field(
        default=(),
        description='Accelerators that Functions may ask for, in a JSON list, as `["H100"]`: what every node has.',
    )
    nvml_module: str = Field(
        default="pynvml", description="Python module by which a node asks for its accelerators; of nvidia-ml-py."
    )
    worker_pids_max: int = Field(default=1_024, description="Processes and threads of one worker.")
    worker_memory_bytes_max: int = Field(
        default=0, description="Hard limit of one worker's memory; 0 leaves it to the limit of all."
    )
    worker_memory_factor: float = Field(
        default=2.0,
        ge=0,
        description="A worker is ended at this many times `spec.resources.memory`, files in memory included, since "
        "that is what it gets at least; 0 leaves it to the other limits.",
    )
    worker_cpu_factor: float = Field(
        default=0,
        ge=0,
        description="A worker gets at most this many times `spec.resources.cpu`; 0 lets it use what no other wants, "
        "and only shares it by what each asks for.",
    )
    workers_memory_bytes_max: int = Field(
        default=0, description="Hard limit of all workers of a host together; 0 takes 9/10 of its memory."
    )

    # Images
    image_builds_max: int = Field(default=2, description="Builds of images at once on a host; more wait their turn.")
    image_build_seconds_max: float = Field(default=1_800.0, description="A build that takes longer fails; it may hang.")
    image_disk_bytes_max: int = Field(
        default=20 << 30, description="Disk of one build, with what it downloads; the largest frameworks take half."
    )
    images_disk_bytes_max: int = Field(
        default=100 << 30, description="Disk of all built images of a host; idle ones go when a new one needs room."
    )
    image_memory_bytes_max: int = Field(
        default=4 << 30, description="Hard limit of one build's memory; compilers of the largest packages take half."
    )
    image_index_url: str = Field(
        default="", description="Package index of steps that name none; empty takes that of uv."
    )
    image_index_hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts, in a JSON list, that package steps may reach beside the index and its files, by https.",
    )
    image_collect_seconds: float = Field(
        default=600.0, description="Between two looks of a node for built images that no Function names."
    )
    image_idle_seconds: float = Field(
        default=86_400.0, description="Such an image is kept this long after its last use, for who runs an App daily."
    )

    # Egress: what workers reach, through the node's proxy (docs/decisions/0022)
    egress_ports: list[int] = Field(
        default=[80, 443], description="Ports that an allow-list reaches; its rules name hosts only."
    )
    egress_ports_closed: list[int] = Field(
        default=[25],
        description="Ports that no policy reaches: a worker must not send mail past the host's own server.",
    )
    egress_npm_hosts: tuple[str, ...] = Field(
        default=(), description="Hosts of the preset npm-packages beside the one that npm on the node names."
    )
    egress_private_ranges: list[IPvAnyNetwork] = Field(
        default=[],
        description="Private ranges that workers may reach all the same, such as 10.20.0.0/16; the names still decide.",
    )
    egress_resolv_conf: Path = Field(
        default=Path("/etc/resolv.conf"),
        description="How names are looked up for workers; read when the proxy starts, so point it at a stable server.",
    )
    egress_connections_max: int = Field(
        default=128, description="Connections of one worker through the proxy; each holds two descriptors."
    )
    egress_head_bytes_max: int = Field(default=16_384, description="Head of one request to the proxy; httpd's limit.")
    egress_head_seconds_max: float = Field(
        default=10.0, description="A request must have come by then; nothing but a slow-loris attack takes longer."
    )
    egress_connect_seconds_max: float = Field(
        default=15.0, description="To look a name up and connect to it; clients give up at 30 s or later."
    )
    egress_hello_seconds_max: float = Field(
        default=30.0, description="Until a tunnel has begun its TLS; a client may open one a little ahead."
    )
    egress_idle_seconds_max: float = Field(
        default=900.0,
        description="A connection on which nothing moves for this long is closed; long polls are shorter.",
    )
    egress_bytes_per_second_max: int = Field(
        default=128 << 20, description="One worker's traffic, both ways together, so that it leaves others some."
    )
    egress_lookups_max: int = Field(
        default=4, description="Names of one worker looked up at once; each holds one of 64 threads of the proxy."
    )
    egress_decisions_max: int = Field(
        default=100, description="Different decisions of the proxy told in one worker's log; the rest is counted."
    )

    # Controllers
    engine_call_seconds_max: float = Field(
        default=5.0, description="One request to Temporal; its client would retry for ever while the server is down."
    )
    workflow_tasks_max: int = Field(
        default=20, description="Workflow tasks at once in a control process; more time out when the CPU is short."
    )
    starter_busy_transitions_per_second: int = Field(
        default=40, description="Changes of calls a second from which starting workflows makes way for running calls."
    )
    starter_trickle_per_second: float = Field(
        default=2.0, description="Workflow starts a second while it makes way; none would leave retries waiting."
    )
    worker_starts_in_flight_max: int = Field(
        default=4, description="Workers that start at once on a host; more would only slow each other down."
    )
    autoscaler_pause_seconds: float = Field(
        default=0.25, description="Between two looks at a Function that needed nothing done at the first."
    )
    autoscaler_resync_seconds: float = Field(
        default=5.0, description="Every Function with workers or calls is looked at this often, changed or not."
    )
    function_status_seconds: float = Field(
        default=1.0, description="Between two writes of one Function's status; each is a change for every watcher."
    )
    controller_round_seconds: int = Field(
        default=1_800, description="A controller's activity returns after this long, which empties its history."
    )
    canary_seconds: int = Field(
        default=60, description="A control process whose canary workflow takes longer is wedged and restarts."
    )

    # Blobs
    s3_endpoint: str = Field(default="", description="host:port of an S3 service; empty keeps blobs on the local disk.")
    s3_bucket: str = Field(default="nodus", description="Bucket that holds all blobs.")
    s3_region: str = Field(default="us-east-1", description="Region that signatures name.")
    s3_access_key: SecretStr = Field(default=SecretStr(""), description="S3 access key id.")
    s3_secret_key: SecretStr = Field(default=SecretStr(""), description="S3 secret key.")
    s3_secure: bool = Field(default=True, description="Speak https to the S3 service.")
    blob_bytes_max: int = Field(default=5 << 30, description="One blob; S3's own limit for a single PUT.")
    blob_url_seconds: int = Field(default=900, description="Lifetime of a signed blob URL; the protocol's.")
    s3_public_url: str = Field(
        default="", description="Origin at which clients reach the S3 service; empty uses `s3_endpoint`."
    )
    sandbox_api_origin: str = Field(
        default="http://127.0.0.1:3128", description="Where code in a sandbox reaches this API, in blob URLs for it."
    )
    blob_orphan_hours: int = Field(
        default=24, description="Stored bytes older than this that no row names go; uploads take far less."
    )
    blob_idle_seconds: int = Field(default=60, description="An upload that sends nothing for this long is given up.")
    blob_upload_seconds_max: int = Field(
        default=3_600, description="An upload may take this long in all, however steadily its bytes trickle in."
    )
    blob_uploads_max: int = Field(default=64, description="Uploads through this process at once; more get 503.")
    blob_verifications_max: int = Field(default=2, description="Blobs of S3 hashed at once; each reads a whole object.")

    # Logs
    log_attempt_bytes_max: int = Field(
        default=16 << 20, description="Log kept of one worker; beyond it the oldest lines go and a mark tells so."
    )
    log_line_bytes_max: int = Field(default=64 << 10, description="Longer lines are cut.")
    log_request_bytes_max: int = Field(default=4 << 20, description="One batch of lines from a node.")
    log_poll_seconds: float = Field(default=0.5, description="How late lines from another API process may be noticed.")
    log_tail_lines_max: int = Field(default=100_000, description="Largest `tailLines`; more is taken for this many.")
    log_follow_seconds_max: float = Field(
        default=30 * 86_400.0, description="A followed log is ended after this long; no client opens it again."
    )
    log_followers_max: int = Field(default=2_000, description="Followed logs of one process; more get 429.")
    log_read_settle_seconds: float = Field(
        default=0.5, description="A log asked for within this time of a call's end waits for lines on their way."
    )
    log_settle_seconds: float = Field(
        default=2.0, description="How long a follower waits for the last lines after its call or worker has ended."
    )
