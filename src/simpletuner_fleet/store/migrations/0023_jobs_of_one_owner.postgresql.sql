-- One owner may have tens of thousands of jobs: what runs or waits of them is found without walking past the others.
CREATE INDEX jobs_by_owner_and_state ON jobs (owner, state, seq);
