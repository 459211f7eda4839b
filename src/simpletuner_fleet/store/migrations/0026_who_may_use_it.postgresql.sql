-- Whose jobs a worker takes, as the pool says that brought it; NULL: everybody's.
ALTER TABLE workers ADD COLUMN audience TEXT;
