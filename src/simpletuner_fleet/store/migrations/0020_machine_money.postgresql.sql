-- Pools and machines counted in dollars; now they count as all money does, in millionths of the currency's unit.
UPDATE pools SET document = jsonb_set(
    jsonb_set(
        document::jsonb,
        '{request}',
        (document::jsonb -> 'request') - ARRAY['max_price', 'max_hourly', 'max_daily', 'max_monthly']
        || jsonb_build_object(
            'max_price_micros', round((document::jsonb #>> '{request,max_price}')::numeric * 1000000)::bigint,
            'max_hourly_micros', round((document::jsonb #>> '{request,max_hourly}')::numeric * 1000000)::bigint,
            'max_daily_micros', round((document::jsonb #>> '{request,max_daily}')::numeric * 1000000)::bigint,
            'max_monthly_micros', round((document::jsonb #>> '{request,max_monthly}')::numeric * 1000000)::bigint
        )
    ),
    '{no_machine}',
    '{}'
)::text;
UPDATE machines SET document = (
    document::jsonb - 'offered_price'
    || jsonb_build_object(
        'offered_micros', round((document::jsonb ->> 'offered_price')::numeric * 1000000)::bigint,
        'rates', (
            SELECT coalesce(
                jsonb_agg(
                    jsonb_build_array(rate.value -> 0, round((rate.value ->> 1)::numeric * 1000000)::bigint)
                    ORDER BY rate.ordinality
                ),
                '[]'
            )
            FROM jsonb_array_elements(document::jsonb -> 'rates') WITH ORDINALITY AS rate
        )
    )
)::text;
