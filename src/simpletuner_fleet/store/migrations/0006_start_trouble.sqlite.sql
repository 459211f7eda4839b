-- What a worker could not start since it last started something; none while all is well.
ALTER TABLE workers ADD COLUMN start_trouble TEXT;
