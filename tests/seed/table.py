"""Which test holds which statement of the seed true."""

from pathlib import Path
from typing import NamedTuple

E2E = Path(__file__).parent.parent / "e2e"


class Row(NamedTuple):
    section: str
    begins: str
    """The statement's first line, whole."""
    tests: tuple[str, ...]


def _in(folder: str, file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{file}.py::test_{name}" for name in names)


def e2e(file: str, *names: str) -> tuple[str, ...]:
    (path,) = E2E.glob(f"*/test_{file}.py")
    return _in(f"e2e/{path.parent.name}", file, *names)


def http(folder: str, file: str, *names: str) -> tuple[str, ...]:
    return _in(f"http/{folder}", file, *names)


def core(folder: str, file: str, *names: str) -> tuple[str, ...]:
    return _in(f"core/{folder}", file, *names)


SPREAD = e2e("fleet", "jobs_spread_over_ephemeral_and_persistent_workers_of_one_fleet")
CLOUD = e2e("cloud_machines", "no_machine_is_forgotten_doubled_or_left_billing")
RUNS = e2e("running_jobs", "a_submitted_job_runs_on_the_worker_and_completes")
QUICK_START = e2e("quick_start", "the_quick_start_works_as_printed")
AS_PRINTED = e2e("quick_start", "the_header_less_lines_of_the_document_work_on_the_orchestrators_own_machine")
PINNED = e2e("quick_start", "with_ssl_a_worker_that_pins_the_printed_fingerprint_runs_jobs")
STREAMED = e2e("fleet", "a_job_is_dispatched_by_the_stream_and_waits_for_no_heartbeat")
CAPABLE = e2e("placing_jobs", "a_worker_registers_with_its_gpu_capabilities")
DETECTED = _in(
    "agent/gpus", "gpu_probe", "what_the_driver_tells_becomes_gpus_and_samples", "a_machine_says_what_it_is"
)
DIAGRAM = e2e("fleet", "a_worker_walks_through_the_states_of_the_diagram")
DEFAULTS = e2e("rhythm", "the_documented_intervals_are_the_defaults")
RHYTHM = e2e("rhythm", "a_worker_sends_its_heartbeats_in_the_rhythm_it_is_told")
DEAD_MACHINE = e2e(
    "worker_deaths",
    "a_dead_machine_is_noticed_after_the_heartbeat_timeout_and_its_job_goes_to_the_next_worker",
)
KILLED = e2e(
    "worker_deaths",
    "a_worker_killed_outright_is_reported_by_its_shim_and_its_job_runs_elsewhere_within_five_seconds",
)
EXHAUSTED = e2e("worker_deaths", "a_job_that_runs_out_of_retries_is_failed_and_says_why")
RECONNECT = e2e("orchestrator_deaths", "workers_reconnect_by_themselves_after_a_restart")
UNDISTURBED = e2e("orchestrator_deaths", "a_running_job_is_not_disturbed_by_the_orchestrators_death")
FINISHED_AWAY = e2e(
    "orchestrator_deaths",
    "a_job_that_finished_while_the_orchestrator_was_away_is_recorded_once",
    "a_silent_worker_gets_its_full_grace_after_a_restart",
)
LEAVES = e2e("administration", "an_ephemeral_worker_shuts_down_after_its_job_and_is_cleaned_up")
STAYS = e2e("administration", "a_persistent_worker_stays_and_takes_the_next_job")
DROPPED = e2e("network", "a_dropped_connection_stops_no_trainer_and_the_worker_reconnects")
DRAIN = e2e("administration", "a_draining_worker_finishes_its_job_and_gets_no_other")
DRAINED_LEAVES = e2e("administration", "a_draining_ephemeral_worker_leaves_after_its_job")
ROTATED = e2e("administration", "a_token_rotated_in_the_middle_of_a_job_costs_neither_trainer_nor_job")
CUT = e2e("administration", "a_rotated_tokens_stream_is_cut_within_a_second")
DELETED = e2e("administration", "only_an_offline_worker_can_be_deleted")
SHOWN_ONCE = e2e("administration", "a_token_is_shown_once_and_stored_only_as_its_hash")
GLOBS = e2e("placing_jobs", "labels_match_by_glob_and_in_any_case")
ADMIN_LABELS = e2e("placing_jobs", "what_the_admin_labelled_no_worker_can_change")
GPU_COUNT = e2e("placing_jobs", "the_gpu_count_comes_from_the_configs_number_of_processes")
WAITING = e2e("placing_jobs", "every_waiting_job_says_why_it_waits")
REMOTE = e2e("placing_jobs", "target_worker_goes_only_to_remote_workers")
LOCAL = e2e("placing_jobs", "target_local_runs_on_the_orchestrators_own_gpus")
AUTO = e2e("placing_jobs", "target_auto_prefers_a_worker_and_falls_back_to_local")
AUDITED = e2e("audit", "every_act_is_logged_and_the_log_verifies")
REFUSED = e2e("troubleshooting", "connection_refused_is_told_with_the_three_things_to_check")
OLD_TOKEN = e2e("troubleshooting", "a_rotated_token_is_told_as_an_invalid_token")
BLANKS = e2e(
    "troubleshooting",
    "whitespace_in_a_token_is_told_as_whitespace",
    "whitespace_around_a_token_is_taken_off_and_told",
)
UNTRUSTED = e2e("troubleshooting", "a_certificate_nobody_vouches_for_is_told_with_every_way_out")
NO_VERIFY = e2e("quick_start", "ssl_no_verify_works_and_warns")
SYSTEM_STORE = e2e("quick_start", "with_ssl_the_ca_in_the_systems_trust_store_is_enough")
LOST = e2e("troubleshooting", "a_lost_worker_is_told_with_what_to_look_for")
CRASHED = e2e("troubleshooting", "a_crashed_trainer_is_told_with_what_to_look_for")
NOT_DISPATCHED = e2e("troubleshooting", "a_job_that_is_not_dispatched_says_what_to_check")
DOCTOR = e2e("troubleshooting", "the_doctor_looks_at_drivers_disk_and_connection")
BY_HEADER = e2e("fleet", "a_worker_authenticates_by_its_token_header_alone")
PERMISSION = http("api", "api_permissions", "a_row_admits_exactly_those_it_names")
REGISTERS = http("api/workers", "api_workers", "a_registration_answers_everything_the_contract_names")

INTRO, OVERVIEW, TYPES = "Worker Orchestration", "Overview", "Worker Types"
START, TOKEN, WORKER, SUBMIT = (
    "1. Start the Orchestrator",
    "2. Create a Worker Token",
    "3. Start the Worker",
    "4. Submit Jobs to Workers",
)
CLI, MODES, LIFECYCLE = "CLI Reference", "Ephemeral vs Persistent Mode", "Worker Lifecycle"
HEALTH, FAILURES = "Health Monitoring", "Handling Failures"
MATCHING, LABELS = "GPU Matching", "Labels"
LIST, DRAINING, ROTATE, DELETE = "List Workers", "Drain a Worker", "Rotate Token", "Delete a Worker"
TOKENS, NETWORK, AUDIT = "Token Authentication", "Network Security", "Audit Logging"
CONNECT, OFFLINE, DISPATCH = (
    "Worker Can't Connect",
    "Worker Goes Offline Unexpectedly",
    "Jobs Not Dispatching to Workers",
)
WORKER_API = "Worker Endpoints (Worker → Orchestrator)"
ADMIN_API = "Admin Endpoints (Requires `admin.workers` permission)"
SEE_ALSO = "See Also"

ROWS = (
    Row(
        INTRO,
        "SimpleTuner's worker orchestration allows you to distribute training jobs across multiple GPU machines.",
        SPREAD,
    ),
    Row(
        INTRO,
        "Workers register with a central orchestrator, receive job dispatch events in real-time, and report status back.",
        RUNS + STREAMED,
    ),
    Row(OVERVIEW, "The orchestrator/worker architecture enables:", SPREAD + KILLED),
    Row(
        OVERVIEW,
        "**Distributed training** - Run jobs on any machine with GPUs, anywhere",
        SPREAD + QUICK_START,
    ),
    Row(OVERVIEW, "**Auto-discovery** - Workers self-register with GPU capabilities", CAPABLE + DETECTED),
    Row(OVERVIEW, "**Real-time dispatch** - Jobs dispatched via SSE (Server-Sent Events)", STREAMED),
    Row(
        OVERVIEW,
        "**Mixed fleet** - Combine cloud-launched ephemeral workers with persistent on-prem machines",
        SPREAD + CLOUD,
    ),
    Row(OVERVIEW, "**Fault tolerance** - Orphaned jobs are automatically requeued", KILLED + DEAD_MACHINE),
    Row(
        TYPES,
        "| **Ephemeral** | Shuts down after job completion | Cloud spot instances (RunPod, Vast.ai) |",
        LEAVES + e2e("worker_deaths", "sigterm_gives_the_job_back_at_once_and_charges_nothing"),
    ),
    Row(TYPES, "| **Persistent** | Stays online between jobs | On-prem GPUs, reserved instances |", STAYS),
    Row(START, "Run the SimpleTuner server on your central machine:", QUICK_START),
    Row(START, "simpletuner server --host 0.0.0.0 --port 8001", QUICK_START),
    Row(START, "For production, enable SSL:", PINNED),
    Row(START, "simpletuner server --host 0.0.0.0 --port 8001 --ssl", PINNED),
    Row(
        TOKEN,
        "**Via Web UI:** Administration → Workers → Create Worker",
        _in("web/pages", "workers", "a_worker_is_created_by_keyboard_and_comes_in_live"),
    ),
    Row(TOKEN, "**Via API:**", QUICK_START),
    Row(TOKEN, "curl -s -X POST http://localhost:8001/api/admin/workers \\", QUICK_START),
    Row(TOKEN, "Response includes the token (shown only once):", SHOWN_ONCE),
    Row(
        TOKEN,
        "{",
        QUICK_START + http("api/admin", "api_admin", "creating_a_worker_answers_what_the_documents_print"),
    ),
    Row(WORKER, "On the GPU machine:", QUICK_START),
    Row(WORKER, "simpletuner worker \\", QUICK_START),
    Row(WORKER, "Or via environment variables:", QUICK_START),
    Row(
        WORKER,
        "export SIMPLETUNER_ORCHESTRATOR_URL=https://orchestrator.example.com:8001",
        QUICK_START,
    ),
    Row(WORKER, "The worker will:", QUICK_START),
    Row(WORKER, "Connect to the orchestrator", QUICK_START),
    Row(WORKER, "Report GPU capabilities (auto-detected)", CAPABLE + DETECTED),
    Row(WORKER, "Enter the job dispatch loop", STREAMED + STAYS),
    Row(WORKER, "Send heartbeats every 30 seconds", DEFAULTS + RHYTHM),
    Row(
        SUBMIT,
        "**Via Web UI:** Configure your training, then click **Train in Cloud** → select **Worker** as target.",
        _in("web/pages", "train", "a_training_is_configured_and_sent_to_a_worker_by_keyboard"),
    ),
    Row(SUBMIT, "**Via API:**", QUICK_START),
    Row(SUBMIT, "curl -s -X POST http://localhost:8001/api/queue/submit \\", QUICK_START),
    Row(SUBMIT, "Target options:", REMOTE + LOCAL + AUTO),
    Row(SUBMIT, "| `worker` | Dispatch only to remote workers |", REMOTE),
    Row(SUBMIT, "| `local` | Run on orchestrator's GPUs |", LOCAL),
    Row(SUBMIT, "| `auto` | Prefer worker if available, fall back to local |", AUTO),
    Row(
        CLI,
        "simpletuner worker [OPTIONS]",
        e2e(
            "quick_start",
            "the_options_of_the_worker_are_those_of_the_document",
            "a_worker_is_named_after_its_host_and_is_ephemeral_unless_told_otherwise",
        ),
    ),
    Row(
        MODES,
        "**Ephemeral (default):**",
        e2e("quick_start", "a_worker_is_named_after_its_host_and_is_ephemeral_unless_told_otherwise"),
    ),
    Row(MODES, "Worker shuts down after completing one job", LEAVES),
    Row(
        MODES,
        "Ideal for cloud spot instances that bill per minute",
        LEAVES + e2e("network", "an_ephemeral_worker_leaves_only_after_its_final_report_was_answered"),
    ),
    Row(
        MODES,
        "Orchestrator cleans up offline ephemeral workers after 1 hour",
        LEAVES
        + core("workers", "liveness", "only_ephemeral_workers_offline_for_an_hour_are_cleaned_up")
        + _in("client", "resolve_settings", "the_defaults_are_the_documented_ones"),
    ),
    Row(MODES, "**Persistent (`--persistent`):**", STAYS),
    Row(MODES, "Worker stays online waiting for new jobs", STAYS),
    Row(MODES, "Reconnects automatically if connection drops", DROPPED + RECONNECT),
    Row(
        MODES,
        "Use for on-prem GPUs or reserved instances",
        STAYS + e2e("administration", "an_offline_persistent_worker_is_never_cleaned_up"),
    ),
    Row(
        LIFECYCLE,
        "┌─────────────┐     ┌─────────────┐     ┌─────────────┐",
        DIAGRAM + core("workers", "worker", "the_published_status_follows_from_three_facts"),
    ),
    Row(LIFECYCLE, "| `CONNECTING` | Worker establishing connection |", DIAGRAM),
    Row(LIFECYCLE, "| `IDLE` | Ready to receive jobs |", DIAGRAM + RUNS),
    Row(LIFECYCLE, "| `BUSY` | Currently running a job |", DIAGRAM + RUNS),
    Row(LIFECYCLE, "| `DRAINING` | Finishing current job, then shutting down |", DRAIN + DRAINED_LEAVES),
    Row(
        LIFECYCLE,
        "| `OFFLINE` | Disconnected (heartbeat timeout) |",
        DIAGRAM
        + e2e("rhythm", "a_worker_is_offline_a_timeout_after_it_fell_silent_give_or_take_a_health_check"),
    ),
    Row(HEALTH, "The orchestrator monitors worker health:", DEAD_MACHINE),
    Row(HEALTH, "**Heartbeat interval:** 30 seconds (worker → orchestrator)", DEFAULTS + RHYTHM),
    Row(
        HEALTH,
        "**Timeout threshold:** 120 seconds without heartbeat → mark offline",
        DEFAULTS
        + e2e("rhythm", "a_worker_is_offline_a_timeout_after_it_fell_silent_give_or_take_a_health_check"),
    ),
    Row(
        HEALTH,
        "**Health check loop:** Runs every 60 seconds on orchestrator",
        core("workers", "liveness", "a_loss_is_seen_soon_after_its_timeout")
        + _in("orchestrator", "runtime", "the_health_check_goes_on_after_the_store_failed"),
    ),
    Row(FAILURES, "**Worker goes offline during a job:**", DEAD_MACHINE),
    Row(
        FAILURES,
        "Job marked as failed after heartbeat timeout",
        DEAD_MACHINE + core("jobs", "lifecycle", "without_retries_the_first_loss_is_the_end"),
    ),
    Row(
        FAILURES,
        "If retries remaining (default: 3), job requeued",
        DEAD_MACHINE
        + EXHAUSTED
        + DEFAULTS
        + core("jobs", "lifecycle", "three_retries_are_four_charged_attempts_and_no_more"),
    ),
    Row(FAILURES, "Next available worker picks up the job", DEAD_MACHINE + KILLED),
    Row(FAILURES, "**Orchestrator restarts:**", RECONNECT),
    Row(FAILURES, "Workers automatically reconnect", RECONNECT),
    Row(
        FAILURES,
        "Workers report any in-progress jobs",
        UNDISTURBED
        + http("api/workers", "api_workers", "registering_again_with_a_running_attempt_resumes_it"),
    ),
    Row(FAILURES, "Orchestrator reconciles state and resumes", UNDISTURBED + FINISHED_AWAY),
    Row(MATCHING, "Workers report their GPU capabilities on registration:", CAPABLE),
    Row(
        MATCHING,
        "{",
        CAPABLE
        + http("api/workers", "api_workers", "the_flat_gpu_fields_of_the_documents_register_gpus_too"),
    ),
    Row(MATCHING, "Jobs can specify GPU requirements:", GPU_COUNT + GLOBS),
    Row(MATCHING, "curl -s -X POST http://localhost:8001/api/queue/submit \\", AS_PRINTED),
    Row(MATCHING, "The scheduler matches jobs to workers based on:", WAITING),
    Row(MATCHING, "GPU count requirements", GPU_COUNT),
    Row(MATCHING, "Label matching (glob patterns supported)", GLOBS),
    Row(MATCHING, "Worker availability (IDLE status)", WAITING),
    Row(LABELS, "Labels provide flexible worker selection:", GLOBS),
    Row(LABELS, "**Assign labels on worker creation:**", ADMIN_LABELS),
    Row(LABELS, "curl -s -X POST http://localhost:8001/api/admin/workers \\", AS_PRINTED),
    Row(LABELS, "**Select workers by label:**", GLOBS),
    Row(LABELS, "# Match workers with team=nlp", AS_PRINTED),
    Row(LIST, "curl -s http://localhost:8001/api/admin/workers | jq", AS_PRINTED),
    Row(LIST, "Response:", AS_PRINTED),
    Row(LIST, "{", AS_PRINTED + http("api/admin", "api_admin", "the_list_has_every_field_of_the_documents")),
    Row(DRAINING, "Gracefully finish current job and prevent new dispatch:", DRAIN),
    Row(DRAINING, "curl -s -X POST http://localhost:8001/api/admin/workers/w_abc123/drain", AS_PRINTED),
    Row(DRAINING, "The worker will:", DRAIN),
    Row(DRAINING, "Complete any running job", DRAIN),
    Row(
        DRAINING,
        "Enter DRAINING status",
        DRAIN + e2e("administration", "a_drain_is_idempotent_and_survives_restarts_of_both_ends"),
    ),
    Row(DRAINING, "Refuse new jobs", DRAIN),
    Row(
        DRAINING,
        "Disconnect after job completion (ephemeral) or remain in draining state (persistent)",
        DRAIN + DRAINED_LEAVES,
    ),
    Row(ROTATE, "Regenerate a worker's authentication token:", SHOWN_ONCE),
    Row(ROTATE, "curl -s -X POST http://localhost:8001/api/admin/workers/w_abc123/token", AS_PRINTED),
    Row(ROTATE, "The old token is immediately invalidated.", ROTATED + CUT),
    Row(ROTATE, "Update the worker with the new token.", ROTATED),
    Row(DELETE, "curl -s -X DELETE http://localhost:8001/api/admin/workers/w_abc123", AS_PRINTED),
    Row(DELETE, "Only works if the worker is offline.", DELETED),
    Row(TOKENS, "Workers authenticate via `X-Worker-Token` header", BY_HEADER),
    Row(
        TOKENS,
        "Tokens are SHA-256 hashed before storage",
        SHOWN_ONCE + core("people", "tokens", "only_the_hash_is_stored"),
    ),
    Row(TOKENS, "Tokens never leave the orchestrator after creation", SHOWN_ONCE),
    Row(
        TOKENS,
        "Rotate tokens periodically for security",
        ROTATED + http("api/admin", "api_admin", "an_old_token_is_warned_about"),
    ),
    Row(NETWORK, "For production:", PINNED),
    Row(
        NETWORK,
        "Use `--ssl` flag or terminate TLS at a reverse proxy",
        PINNED + e2e("fleet", "tls_may_end_at_a_reverse_proxy"),
    ),
    Row(
        NETWORK,
        "Restrict worker registration to trusted networks",
        e2e("fleet", "workers_may_connect_from_trusted_networks_alone"),
    ),
    Row(
        NETWORK,
        "Use firewall rules to limit access to `/api/workers/*` endpoints",
        e2e("fleet", "a_worker_needs_nothing_but_the_paths_under_api_workers"),
    ),
    Row(AUDIT, "All worker actions are logged:", AUDITED),
    Row(AUDIT, "Registration attempts (success/failure)", AUDITED),
    Row(AUDIT, "Job dispatch events", AUDITED),
    Row(AUDIT, "Status transitions", AUDITED + DIAGRAM),
    Row(AUDIT, "Token rotations", AUDITED),
    Row(AUDIT, "Admin operations", AUDITED),
    Row(
        AUDIT,
        "See [Audit Guide](AUDIT.md) for log access.",
        AUDITED + http("api/admin", "api_tokens_and_audit", "the_audit_log_is_filtered_and_paged"),
    ),
    Row(CONNECT, '**"Connection refused"**', REFUSED),
    Row(CONNECT, "Verify orchestrator URL and port", REFUSED),
    Row(CONNECT, "Check firewall rules allow inbound connections", REFUSED),
    Row(CONNECT, "Ensure orchestrator is running with `--host 0.0.0.0`", REFUSED + QUICK_START),
    Row(CONNECT, '**"Invalid token"**', OLD_TOKEN),
    Row(CONNECT, "Token may have been rotated—request a new one", OLD_TOKEN),
    Row(CONNECT, "Check for whitespace in token string", BLANKS),
    Row(CONNECT, '**"SSL certificate verify failed"**', UNTRUSTED),
    Row(CONNECT, "Use `--ssl-no-verify` for self-signed certs (development only)", NO_VERIFY + UNTRUSTED),
    Row(CONNECT, "Or add the CA certificate to the system trust store", SYSTEM_STORE + UNTRUSTED),
    Row(OFFLINE, "**Heartbeat timeout (120s)**", LOST + DEFAULTS),
    Row(OFFLINE, "Check network stability between worker and orchestrator", LOST),
    Row(OFFLINE, "Look for resource exhaustion (CPU/memory) on worker", LOST),
    Row(
        OFFLINE,
        "Increase `SIMPLETUNER_HEARTBEAT_TIMEOUT` if on unreliable network",
        LOST + e2e("rhythm", "the_heartbeat_timeout_is_set_by_its_variable"),
    ),
    Row(OFFLINE, "**Process crash**", CRASHED),
    Row(OFFLINE, "Check worker logs for Python exceptions", CRASHED),
    Row(OFFLINE, "Verify GPU drivers are functioning (`nvidia-smi`)", CRASHED + DOCTOR),
    Row(OFFLINE, "Ensure sufficient disk space for training", CRASHED + DOCTOR),
    Row(DISPATCH, "**No idle workers**", NOT_DISPATCHED + WAITING),
    Row(
        DISPATCH,
        "Check worker status in admin panel",
        NOT_DISPATCHED
        + _in("web/pages", "workers", "the_list_is_filtered_by_its_address_and_folds_what_has_gone"),
    ),
    Row(DISPATCH, "Verify workers are connected and IDLE", NOT_DISPATCHED),
    Row(DISPATCH, "Check for label mismatch between job and workers", NOT_DISPATCHED + WAITING),
    Row(DISPATCH, "**GPU requirements not met**", NOT_DISPATCHED),
    Row(DISPATCH, "Job requires more GPUs than any worker has", GPU_COUNT + NOT_DISPATCHED),
    Row(DISPATCH, "Adjust `--num_processes` in training config", GPU_COUNT + NOT_DISPATCHED),
    Row(
        WORKER_API,
        "| `/api/workers/register` | POST | Register and report capabilities |",
        REGISTERS + CAPABLE,
    ),
    Row(
        WORKER_API,
        "| `/api/workers/stream` | GET | SSE stream for job dispatch |",
        STREAMED
        + http("api/workers", "api_stream", "events_have_rising_ids_and_names_that_agree_with_their_type"),
    ),
    Row(
        WORKER_API,
        "| `/api/workers/heartbeat` | POST | Periodic keepalive |",
        RHYTHM + http("api/workers", "api_workers", "a_heartbeat_carries_the_same_orders_as_the_stream"),
    ),
    Row(
        WORKER_API,
        "| `/api/workers/job/{id}/status` | POST | Report job progress |",
        http("api/workers", "api_workers", "a_job_lives_from_submission_to_completion"),
    ),
    Row(
        WORKER_API,
        "| `/api/workers/disconnect` | POST | Graceful shutdown notification |",
        http(
            "api/workers", "api_workers", "a_goodbye_gives_running_attempts_back_at_once_and_charges_nothing"
        ),
    ),
    Row(ADMIN_API, "| `/api/admin/workers` | GET | List all workers |", AS_PRINTED + PERMISSION),
    Row(ADMIN_API, "| `/api/admin/workers` | POST | Create worker token |", QUICK_START + PERMISSION),
    Row(ADMIN_API, "| `/api/admin/workers/{id}` | DELETE | Remove worker |", DELETED + PERMISSION),
    Row(ADMIN_API, "| `/api/admin/workers/{id}/drain` | POST | Drain worker |", DRAIN + PERMISSION),
    Row(ADMIN_API, "| `/api/admin/workers/{id}/token` | POST | Rotate token |", ROTATED + PERMISSION),
    Row(
        SEE_ALSO,
        "[Enterprise Guide](ENTERPRISE.md) - SSO, quotas, approval workflows",
        http(
            "api/jobs",
            "api_queue",
            "limits_hold_jobs_back_and_raising_them_lets_them_go",
            "an_approval_lets_a_job_run_and_a_rejection_ends_it",
        ),
    ),
    Row(
        SEE_ALSO,
        "[Job Queue](../../JOB_QUEUE.md) - Queue scheduling and priorities",
        http(
            "api/jobs",
            "api_queue",
            "the_queue_is_in_scheduling_order_and_comes_in_pages",
            "a_priority_moves_a_job_and_places_it_when_it_can_run",
        ),
    ),
    Row(
        SEE_ALSO,
        "[Cloud Training](../cloud/README.md) - Cloud provider integration",
        LEAVES + CLOUD,
    ),
    Row(
        SEE_ALSO,
        "[API Tutorial](../../api/TUTORIAL.md) - Local training via REST API",
        LOCAL,
    ),
)
