ALTER TABLE attempts ADD COLUMN resumed_from_step BIGINT;
ALTER TABLE attempts ADD COLUMN resumed_manifest TEXT;
ALTER TABLE attempts ADD COLUMN checkpoint_step BIGINT;
ALTER TABLE attempts ADD COLUMN failure_class TEXT;
ALTER TABLE attempts ADD COLUMN failure_evidence TEXT;

CREATE TABLE manifests (
    id TEXT PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    attempt_id TEXT NOT NULL,
    attempt_number BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    step BIGINT,
    files TEXT NOT NULL,
    total_bytes BIGINT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    worker_name TEXT NOT NULL
);
CREATE INDEX manifests_of_job ON manifests (job_id, created_at, id);
CREATE INDEX manifests_checkpoints ON manifests (job_id, step, created_at, id) WHERE kind = 'checkpoint';

-- Which job has proven to have which content. unused_since is NULL while a manifest of the job names it.
CREATE TABLE job_objects (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    size BIGINT NOT NULL,
    unused_since DOUBLE PRECISION,
    PRIMARY KEY (job_id, sha256)
);
CREATE INDEX job_objects_by_content ON job_objects (sha256);
CREATE INDEX job_objects_unused ON job_objects (unused_since, job_id, sha256) WHERE unused_since IS NOT NULL;

CREATE TABLE job_notes (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    attempt_number BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT NOT NULL,
    UNIQUE (job_id, id)
);
