-- What is kept of a job whose record was deleted: what quotas of the hour count, and whose files are still to go.
CREATE TABLE deleted_jobs (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    team TEXT NOT NULL,
    visibility TEXT NOT NULL,
    created_at REAL NOT NULL,
    first_offered_at REAL,
    deleted_at REAL NOT NULL,
    attempts TEXT NOT NULL,
    files_left INTEGER NOT NULL
);
CREATE INDEX deleted_jobs_with_files ON deleted_jobs (deleted_at, id) WHERE files_left = 1;
CREATE INDEX deleted_jobs_by_time ON deleted_jobs (deleted_at, id);
-- What the attempts of deleted jobs have used: reports, quotas and budgets count it as before.
CREATE TABLE spent_attempts (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    team TEXT NOT NULL,
    visibility TEXT NOT NULL,
    config_name TEXT NOT NULL,
    gpu_kind TEXT NOT NULL,
    gpus TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    hourly_micros INTEGER,
    rates TEXT NOT NULL
);
CREATE INDEX spent_attempts_by_end ON spent_attempts (ended_at);
-- A deleted job takes these rows along: they are found without walking past those of all others.
CREATE INDEX job_dependencies_of_job ON job_dependencies (job_id);
CREATE INDEX job_datasets_of_job ON job_datasets (job_id);
-- The moment before which its owner does not want it to start. Whatever holds a queued job for a while is in one index.
ALTER TABLE jobs ADD COLUMN start_at REAL;
DROP INDEX jobs_backing_off;
CREATE INDEX jobs_held_for_a_while ON jobs (not_before, seq) WHERE state = 'queued' AND not_before IS NOT NULL;
