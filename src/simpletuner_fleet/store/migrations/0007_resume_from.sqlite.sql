-- JOB:STEP where a job was submitted to go on from what another one has stored.
ALTER TABLE jobs ADD COLUMN resume_from TEXT;
