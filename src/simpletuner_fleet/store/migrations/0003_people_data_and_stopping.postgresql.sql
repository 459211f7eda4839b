-- Accounts and sessions, datasets, and how a trainer is asked to stop.

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL CONSTRAINT users_name_key UNIQUE,
    role TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    password_hash TEXT NOT NULL,
    language TEXT NOT NULL,
    disabled_at DOUBLE PRECISION,
    last_login_at DOUBLE PRECISION
);

CREATE TABLE sessions (
    token_hash TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    created_at DOUBLE PRECISION NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL,
    ip TEXT NOT NULL
);
CREATE INDEX sessions_of_user ON sessions (user_id, created_at);
