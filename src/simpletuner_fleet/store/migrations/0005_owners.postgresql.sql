-- Whose it is: nobody else changes it but who stands above. Empty: an administrator's.
ALTER TABLE configs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
UPDATE configs SET owner = (
    SELECT first.created_by FROM configs AS first WHERE first.name = configs.name AND first.deleted_at IS NULL
    ORDER BY first.version LIMIT 1
) WHERE deleted_at IS NULL;
ALTER TABLE datasets ADD COLUMN owner TEXT NOT NULL DEFAULT '';
-- The user a token acts for, and never beyond.
ALTER TABLE api_tokens ADD COLUMN owner TEXT NOT NULL DEFAULT '';
