-- Whether what a job made is stored; of jobs that ended before, nobody has said so.
ALTER TABLE jobs ADD COLUMN results TEXT NOT NULL DEFAULT 'none';
