-- Processes of an agent that were superseded: what they still send is refused, also after a restart.
ALTER TABLE workers ADD COLUMN retired TEXT NOT NULL DEFAULT '[]';

-- Who waits is read from memory: these served nobody else.
DROP INDEX jobs_ready;
ALTER TABLE jobs DROP COLUMN prior_state;
DELETE FROM tallies WHERE kind = 'queued';
