-- What an hour of GPUs costs, in millionths of the currency's unit; NULL: nobody has said.
ALTER TABLE workers ADD COLUMN price_micros BIGINT;
ALTER TABLE workers ADD COLUMN reported_price_micros BIGINT;
-- What an attempt used and at which price stays with it: workers go, and prices change.
ALTER TABLE attempts ADD COLUMN gpu_kind TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN hourly_micros BIGINT;
