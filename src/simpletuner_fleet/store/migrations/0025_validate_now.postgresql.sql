-- Which of a worker's trainers validate when asked and train on; NULL: its agent does not know how to ask.
ALTER TABLE workers ADD COLUMN validates_on_request TEXT;
-- The last wish that a training validates now; NULL: there was none.
ALTER TABLE attempts ADD COLUMN validating TEXT;
