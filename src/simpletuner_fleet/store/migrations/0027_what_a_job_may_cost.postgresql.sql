-- What all attempts of a job together may cost, in millionths of the currency's unit; NULL: any amount.
ALTER TABLE jobs ADD COLUMN max_cost_micros BIGINT;
ALTER TABLE jobs ADD COLUMN on_max_cost TEXT NOT NULL DEFAULT 'stop';
-- What those of them have cost that are over, as far as that is known.
ALTER TABLE jobs ADD COLUMN spent_micros BIGINT NOT NULL DEFAULT 0;
-- From when on another price holds, for each change since the offer.
ALTER TABLE attempts ADD COLUMN rates TEXT NOT NULL DEFAULT '[]';
-- Jobs that go on may be given a ceiling later, towards which what they have cost counts.
UPDATE jobs SET spent_micros = coalesce((
    SELECT round(sum(attempts.hourly_micros * (attempts.ended_at - attempts.accepted_at) / 3600.0))::bigint
    FROM attempts WHERE attempts.job_id = jobs.id AND attempts.hourly_micros IS NOT NULL
        AND attempts.ended_at IS NOT NULL AND attempts.accepted_at IS NOT NULL AND attempts.gpus <> '[]'
), 0) WHERE state IN ('blocked', 'queued', 'dispatched', 'running', 'cancelling') AND state <> '';
