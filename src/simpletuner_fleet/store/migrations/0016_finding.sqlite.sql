-- What people write on a job.
ALTER TABLE jobs ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
ALTER TABLE jobs ADD COLUMN note TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_tagged ON jobs (seq) WHERE tags <> '[]';
CREATE INDEX jobs_by_finish ON jobs (finished_at, seq) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_without_results ON jobs (seq) WHERE results = 'missing';
CREATE INDEX jobs_by_former ON jobs (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX attempts_by_failure ON attempts (failure_class, id) WHERE failure_class IS NOT NULL;

-- Who keeps a checkpoint from being deleted; empty: nobody.
ALTER TABLE manifests ADD COLUMN pinned_by TEXT NOT NULL DEFAULT '';

-- Lists of jobs that somebody named; the query is that of the page's address.
CREATE TABLE job_views (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    query TEXT NOT NULL,
    created_at REAL NOT NULL,
    PRIMARY KEY (owner, name)
);
