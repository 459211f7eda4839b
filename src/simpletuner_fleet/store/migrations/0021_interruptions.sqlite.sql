-- That a worker's machine is about to be taken away, and until when it is there; NULL: nobody has said so.
ALTER TABLE workers ADD COLUMN interruption TEXT;
-- Whether its machine was hired as one that may be taken away at any time.
ALTER TABLE workers ADD COLUMN spot INTEGER NOT NULL DEFAULT 0;
-- How often a job's machine was taken away while it ran there.
ALTER TABLE jobs ADD COLUMN interruptions INTEGER NOT NULL DEFAULT 0;
