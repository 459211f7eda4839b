-- Accounts and sessions, datasets, and how a trainer is asked to stop.

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL CONSTRAINT users_name_key UNIQUE,
    role TEXT NOT NULL,
    created_at REAL NOT NULL,
    password_hash TEXT NOT NULL,
    language TEXT NOT NULL,
    disabled_at REAL,
    last_login_at REAL
);

CREATE TABLE sessions (
    token_hash TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    ip TEXT NOT NULL
);
CREATE INDEX sessions_of_user ON sessions (user_id, created_at);

-- A wish to stop outlives the orchestrator that was told it.
ALTER TABLE workers ADD COLUMN drain_plan TEXT;
ALTER TABLE attempts ADD COLUMN stopping TEXT;
ALTER TABLE attempts ADD COLUMN reason TEXT;
ALTER TABLE jobs ADD COLUMN on_time_limit TEXT NOT NULL DEFAULT 'fail';

-- A dataset's id is the SHA-256 of its manifest, which is stored as one of its files. Its files come and go a few at a
-- time, so that nobody waits long for one with many; until all are there, and once one has gone, it is not ready.
CREATE TABLE datasets (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    files INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL,
    manifest_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    created_by TEXT NOT NULL,
    ready INTEGER NOT NULL
);
CREATE TABLE dataset_files (
    dataset_id TEXT NOT NULL REFERENCES datasets (id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (dataset_id, sha256)
) WITHOUT ROWID;
CREATE INDEX dataset_files_by_content ON dataset_files (sha256);
-- What people have uploaded. unused_since is NULL while a dataset names it.
CREATE TABLE dataset_objects (
    sha256 TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    unused_since REAL
) WITHOUT ROWID;
CREATE INDEX dataset_objects_unused ON dataset_objects (unused_since, sha256) WHERE unused_since IS NOT NULL;
CREATE TABLE job_datasets (
    dataset_id TEXT NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    PRIMARY KEY (dataset_id, job_id)
) WITHOUT ROWID;
ALTER TABLE workers ADD COLUMN datasets TEXT NOT NULL DEFAULT '[]';
ALTER TABLE workers ADD COLUMN data_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN data_limit_bytes INTEGER NOT NULL DEFAULT 0;

-- A watchdog found the training spoiled from this step on.
ALTER TABLE attempts ADD COLUMN resume_below INTEGER;

CREATE INDEX attempts_by_end ON attempts (ended_at) WHERE ended_at IS NOT NULL;

-- Where a worker registered from and what it says of its connection; tokens it had before, by their hashes.
ALTER TABLE workers ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN tls TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN former_tokens TEXT NOT NULL DEFAULT '[]';

ALTER TABLE api_tokens ADD COLUMN last_used_at REAL;
