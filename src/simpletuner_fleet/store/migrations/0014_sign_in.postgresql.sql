-- Who vouches for a user, and for a session. Issuer and subject together are who somebody is.
ALTER TABLE users ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN shut_out INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX users_by_subject ON users (issuer, subject) WHERE issuer <> '';

ALTER TABLE sessions ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN sid TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN id_token TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_by_sid ON sessions (issuer, sid) WHERE sid <> '';
