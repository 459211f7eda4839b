-- Models of completed jobs on their way to where they are wanted; `document` is the whole row as JSON.
CREATE TABLE publications (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    not_before DOUBLE PRECISION NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX publications_due ON publications (not_before, job_id) WHERE state = 'due';
