CREATE TABLE job_edges (
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    PRIMARY KEY (from_state, to_state)
);

CREATE TABLE classes (
    class_id TEXT PRIMARY KEY,
    requires TEXT NOT NULL
);

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    seq BIGINT NOT NULL UNIQUE,
    config_name TEXT NOT NULL,
    config_version BIGINT NOT NULL,
    requires TEXT NOT NULL,
    class_id TEXT NOT NULL REFERENCES classes (class_id),
    owner TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    depends_on TEXT NOT NULL,
    retry_of TEXT,
    state TEXT NOT NULL,
    prior_state TEXT NOT NULL DEFAULT '',
    hold TEXT NOT NULL,
    rank DOUBLE PRECISION NOT NULL,
    priority BIGINT NOT NULL,
    max_retries BIGINT NOT NULL,
    not_before DOUBLE PRECISION,
    retry_on_failure BIGINT NOT NULL,
    time_limit_s DOUBLE PRECISION,
    on_partition TEXT NOT NULL,
    name TEXT,
    epoch BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    losses BIGINT NOT NULL,
    failures BIGINT NOT NULL,
    lost_workers TEXT NOT NULL,
    attempt_id TEXT,
    worker_id TEXT,
    gpus TEXT NOT NULL,
    progress TEXT,
    error TEXT,
    reason TEXT,
    started_at DOUBLE PRECISION,
    finished_at DOUBLE PRECISION,
    version BIGINT NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX jobs_ready ON jobs (class_id, rank, seq) WHERE state = 'queued' AND hold = '';
CREATE INDEX jobs_queue ON jobs (rank, seq) WHERE state = 'queued';
CREATE INDEX jobs_backing_off ON jobs (not_before, seq) WHERE state = 'queued' AND hold = 'backoff';
-- The condition always holds: it keeps SQLite from taking this index where jobs_queue serves better.
CREATE INDEX jobs_by_state ON jobs (state, seq) WHERE state <> '';
CREATE INDEX jobs_by_owner ON jobs (owner, seq);
CREATE INDEX jobs_by_worker ON jobs (worker_id, seq) WHERE worker_id IS NOT NULL;
CREATE INDEX jobs_by_config ON jobs (config_name, seq);

CREATE TABLE job_bundles (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    bundle BYTEA NOT NULL
);

CREATE TABLE job_dependencies (
    needs TEXT NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    PRIMARY KEY (needs, job_id)
);

CREATE TABLE attempts (
    id TEXT PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    worker_id TEXT NOT NULL,
    worker_name TEXT NOT NULL,
    state TEXT NOT NULL,
    offered_at DOUBLE PRECISION NOT NULL,
    gpus TEXT NOT NULL,
    gpu_indices TEXT NOT NULL,
    upload_token_hash TEXT NOT NULL,
    accepted_at DOUBLE PRECISION,
    started_at DOUBLE PRECISION,
    ended_at DOUBLE PRECISION,
    outcome TEXT,
    exit_code BIGINT,
    exit_signal BIGINT,
    error TEXT,
    last_lines TEXT,
    incarnation TEXT NOT NULL,
    UNIQUE (job_id, epoch)
);
CREATE UNIQUE INDEX attempts_one_live_per_job ON attempts (job_id) WHERE state <> 'ended';
CREATE INDEX attempts_live ON attempts (worker_id, epoch, id) WHERE state <> 'ended';
-- The condition always holds: it keeps SQLite from taking this index where attempts_live serves better.
CREATE INDEX attempts_by_worker ON attempts (worker_id, epoch, id) WHERE worker_id <> '';
CREATE INDEX attempts_by_upload_token ON attempts (upload_token_hash) WHERE upload_token_hash <> '';

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL CONSTRAINT workers_name_key UNIQUE,
    token_hash TEXT NOT NULL CONSTRAINT workers_token_hash UNIQUE,
    token_created_at DOUBLE PRECISION NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    chosen_type TEXT,
    reported_type TEXT,
    admin TEXT NOT NULL,
    connection TEXT NOT NULL,
    labels TEXT NOT NULL,
    reported_labels TEXT NOT NULL,
    gpus TEXT NOT NULL,
    trainers TEXT NOT NULL,
    max_jobs BIGINT NOT NULL,
    legacy BIGINT NOT NULL,
    local BIGINT NOT NULL,
    agent_version TEXT NOT NULL,
    home TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    message_seq BIGINT NOT NULL,
    registered_at DOUBLE PRECISION,
    last_heartbeat DOUBLE PRECISION,
    offline_since DOUBLE PRECISION,
    drain_note TEXT NOT NULL,
    version BIGINT NOT NULL
);
CREATE INDEX workers_offline ON workers (offline_since, id) WHERE connection = 'offline';

CREATE TABLE configs (
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    bundle BYTEA NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    created_by TEXT NOT NULL,
    deleted_at DOUBLE PRECISION,
    PRIMARY KEY (name, version)
);

CREATE TABLE api_tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    token_hash TEXT NOT NULL CONSTRAINT api_tokens_token_hash UNIQUE,
    permissions TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION,
    revoked_at DOUBLE PRECISION
);

CREATE TABLE idempotency (
    key TEXT NOT NULL,
    owner TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    job_id TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (key, owner)
);

CREATE TABLE settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE counters (
    seq BIGINT NOT NULL,
    epoch BIGINT NOT NULL
);
INSERT INTO counters (seq, epoch) VALUES (0, 0);

CREATE TABLE audit (
    seq BIGINT PRIMARY KEY,
    at DOUBLE PRECISION NOT NULL,
    event_type TEXT NOT NULL,
    actor_id TEXT NOT NULL,
    actor_name TEXT NOT NULL,
    ip TEXT NOT NULL,
    target_type TEXT NOT NULL,
    target_id TEXT NOT NULL,
    details TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE INDEX audit_by_type ON audit (event_type, seq);
CREATE INDEX audit_by_actor ON audit (actor_id, seq);
CREATE INDEX audit_by_target ON audit (target_id, seq);
CREATE INDEX audit_by_time ON audit (at);

-- How many there are, without walking: jobs by state, queued jobs by class, audit entries by type.
CREATE TABLE tallies (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (kind, key)
);

-- job_edges is filled from the state machine of the code at every start.
CREATE FUNCTION jobs_follow_the_machine() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM job_edges WHERE from_state = OLD.state AND to_state = NEW.state) THEN
        RAISE EXCEPTION 'illegal job edge' USING ERRCODE = 'triggered_data_change_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER jobs_follow_the_machine BEFORE UPDATE OF state ON jobs
FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION jobs_follow_the_machine();
