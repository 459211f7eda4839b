-- Where people and programs are told of events, and what was sent there last.
CREATE TABLE endpoints (
    id TEXT PRIMARY KEY,
    document TEXT NOT NULL
);
CREATE TABLE deliveries (
    endpoint_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (endpoint_id, number)
);
