-- Who leads. Only a change of term takes a lock that conflicts with what every writing transaction holds on the row
-- (FOR KEY SHARE): renewals and writes do not wait for each other, a takeover waits for the writes under way.
CREATE TABLE IF NOT EXISTS leadership (
    term BIGINT PRIMARY KEY,
    only_one BOOLEAN NOT NULL DEFAULT TRUE UNIQUE CHECK (only_one),
    holder TEXT NOT NULL,
    url TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    renewals BIGINT NOT NULL,
    released BOOLEAN NOT NULL,
    renewed_at TIMESTAMPTZ NOT NULL
);
-- What all orchestrators of a fleet must have in common, sealed with the key that each was given.
CREATE TABLE IF NOT EXISTS shared_files (name TEXT PRIMARY KEY, sealed TEXT NOT NULL);
