ALTER TABLE attempts ADD COLUMN resumed_from_step INTEGER;
ALTER TABLE attempts ADD COLUMN resumed_manifest TEXT;
ALTER TABLE attempts ADD COLUMN checkpoint_step INTEGER;
ALTER TABLE attempts ADD COLUMN failure_class TEXT;
ALTER TABLE attempts ADD COLUMN failure_evidence TEXT;

CREATE TABLE manifests (
    id TEXT PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt_id TEXT NOT NULL,
    attempt_number INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    step INTEGER,
    files TEXT NOT NULL,
    total_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    worker_name TEXT NOT NULL
);
CREATE INDEX manifests_of_job ON manifests (job_id, created_at, id);
CREATE INDEX manifests_checkpoints ON manifests (job_id, step, created_at, id) WHERE kind = 'checkpoint';

-- Which job has proven to have which content. unused_since is NULL while a manifest of the job names it.
CREATE TABLE job_objects (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    unused_since REAL,
    PRIMARY KEY (job_id, sha256)
) WITHOUT ROWID;
CREATE INDEX job_objects_by_content ON job_objects (sha256);
CREATE INDEX job_objects_unused ON job_objects (unused_since, job_id, sha256) WHERE unused_since IS NOT NULL;

CREATE TABLE job_notes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    attempt_number INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT NOT NULL,
    UNIQUE (job_id, id)
);
