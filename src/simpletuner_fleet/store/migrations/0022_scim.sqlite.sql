-- What a provider tells of its users and groups by SCIM. The id of a user is that of the user here; `kind` is user, group, or
-- gone: a user whom the provider has deleted.
CREATE TABLE scim_entries (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    name_key TEXT NOT NULL,
    external_id TEXT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (kind, id)
);
CREATE UNIQUE INDEX scim_entries_by_name ON scim_entries (kind, name_key);
CREATE INDEX scim_entries_by_external_id ON scim_entries (kind, external_id) WHERE external_id <> '';
CREATE TABLE scim_members (
    group_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    PRIMARY KEY (group_id, user_id)
);
CREATE INDEX scim_members_by_user ON scim_members (user_id);
