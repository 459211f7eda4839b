"""Files on their way: a folder that is pushed, and what a job has made that is fetched; both verified."""
