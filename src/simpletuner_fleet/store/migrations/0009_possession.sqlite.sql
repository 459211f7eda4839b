-- Who has last sent it whole: before a dataset names it, it is for nobody else to name.
ALTER TABLE dataset_objects ADD COLUMN owner TEXT NOT NULL DEFAULT '';
