-- Pools and machines counted in dollars; now they count as all money does, in millionths of the currency's unit.
UPDATE pools SET document = json_remove(
    json_set(
        document,
        '$.request.max_price_micros', CAST(round(json_extract(document, '$.request.max_price') * 1000000) AS INTEGER),
        '$.request.max_hourly_micros', CAST(round(json_extract(document, '$.request.max_hourly') * 1000000) AS INTEGER),
        '$.request.max_daily_micros', CAST(round(json_extract(document, '$.request.max_daily') * 1000000) AS INTEGER),
        '$.request.max_monthly_micros', CAST(round(json_extract(document, '$.request.max_monthly') * 1000000) AS INTEGER),
        '$.no_machine', json('{}')
    ),
    '$.request.max_price', '$.request.max_hourly', '$.request.max_daily', '$.request.max_monthly'
);
UPDATE machines SET document = json_remove(
    json_set(
        document,
        '$.offered_micros', CAST(round(json_extract(document, '$.offered_price') * 1000000) AS INTEGER),
        '$.rates', (
            SELECT json_group_array(
                json_array(
                    json_extract(rate.value, '$[0]'),
                    CAST(round(json_extract(rate.value, '$[1]') * 1000000) AS INTEGER)
                )
            )
            FROM json_each(machines.document, '$.rates') AS rate
        )
    ),
    '$.offered_price'
);
