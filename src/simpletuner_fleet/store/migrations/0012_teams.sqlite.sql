-- Whose else it is, and who may see it: what there was before is seen by everybody, as it was.
ALTER TABLE jobs ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN visibility TEXT NOT NULL DEFAULT 'everybody';
ALTER TABLE configs ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE configs ADD COLUMN visibility TEXT NOT NULL DEFAULT 'everybody';
ALTER TABLE datasets ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE datasets ADD COLUMN visibility TEXT NOT NULL DEFAULT 'everybody';
