-- Which workers do not grant a path that the job names.
ALTER TABLE jobs ADD COLUMN refused_by TEXT NOT NULL DEFAULT '[]';
