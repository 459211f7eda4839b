-- There may be tens of thousands of users and tokens: a page of users and the tokens of one of them are found without
-- walking past the others.
CREATE INDEX users_in_order ON users (created_at, id);
CREATE INDEX api_tokens_of_owner ON api_tokens (owner, name);
