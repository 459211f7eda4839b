-- Pools from which machines are brought, and those machines; `document` is the whole row as JSON.
CREATE TABLE pools (
    name TEXT PRIMARY KEY,
    document TEXT NOT NULL
);
CREATE TABLE machines (
    id TEXT PRIMARY KEY,
    gone_at REAL,
    join_hash TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX machines_there ON machines (id) WHERE gone_at IS NULL;
CREATE INDEX machines_gone ON machines (gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX machines_joining ON machines (join_hash) WHERE join_hash <> '';
