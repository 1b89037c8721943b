-- Claims the message $4 of the trial $2 as a sidecar does: $1 completion transaction, $3 window in milliseconds, $5
-- token, $6 fingerprint in hex.
--
-- Locks: the row. Repeating it: the same token is renewed.
SELECT answer
FROM onceward.sidecar_claim_many($1::boolean, 'onceward-try', 1, false, '{}', 0, ARRAY[$2::text], ARRAY[$3::bigint * interval '1 ms'], ARRAY[interval '1 hour'],
                                 ARRAY[1000000], ARRAY[0], ARRAY[1], ARRAY[$4::text], ARRAY[$5::uuid], ARRAY[decode($6, 'hex')], ARRAY[NULL::text],
                                 ARRAY[0::bigint], ARRAY[false])
