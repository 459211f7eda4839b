-- Which of a worker's trainers save a checkpoint when asked and train on; NULL: its agent does not know how to ask.
ALTER TABLE workers ADD COLUMN saves_on_request TEXT;
-- The last wish for a checkpoint of a training that goes on; NULL: there was none.
ALTER TABLE attempts ADD COLUMN saving TEXT;
