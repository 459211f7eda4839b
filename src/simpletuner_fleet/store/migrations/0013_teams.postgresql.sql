-- Whose else it is, and who may see it: what there was before is seen by everybody, as it was.
ALTER TABLE jobs ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN visibility TEXT NOT NULL DEFAULT 'everybody';
ALTER TABLE configs ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE configs ADD COLUMN visibility TEXT NOT NULL DEFAULT 'everybody';
ALTER TABLE datasets ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE datasets ADD COLUMN visibility TEXT NOT NULL DEFAULT 'everybody';
-- Whose word a job waits for, or had; `document` is the whole row as JSON.
CREATE TABLE approvals (
    job_id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    asked_at DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION,
    document TEXT NOT NULL
);
CREATE INDEX approvals_pending ON approvals (asked_at, job_id) WHERE state = 'pending';
CREATE INDEX approvals_due ON approvals (expires_at, job_id) WHERE state = 'pending';
-- Tokens that could submit or retry jobs of the trainer `command` still can.
UPDATE api_tokens SET permissions = replace(permissions, '"queue.submit"', '"queue.submit","queue.submit.command"')
    WHERE permissions LIKE '%"queue.submit"%';
UPDATE api_tokens SET permissions = replace(permissions, '"jobs.retry"', '"jobs.retry","queue.submit.command"')
    WHERE permissions LIKE '%"jobs.retry"%' AND permissions NOT LIKE '%"queue.submit"%';
