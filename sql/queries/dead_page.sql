-- Dead letters behind the id $9, up to the id $10, $11 of them at most; $1 to $8 as in dead_count.
--
-- Locks: none. Repeating it: only reads.
SELECT l.id, l.consumer, l.queue, l.vhost, l.message_id, encode(l.raw_id, 'hex'), l.reason, l.last_error, l.content_type, l.properties::text, l.headers::text,
       l.exchange, l.routing_key, to_char(l.died_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), encode(l.fingerprint, 'hex'), l.attempts,
       l.http_status, l.rowless, octet_length(l.body), floor(1000 * extract(epoch FROM clock_timestamp() - l.died_at))::bigint,
       (SELECT substr(btrim(h.value, E' \t'), 4, 32)
        FROM json_each_text(l.headers) h
        WHERE lower(h.key) = 'traceparent'
          AND btrim(h.value, E' \t') ~ '^[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-|$)' LIMIT 1)
FROM onceward.dead_letter l
WHERE l.id > $9::bigint AND l.id <= $10::bigint AND
-- @part dead_filter
ORDER BY l.id LIMIT $11::bigint
