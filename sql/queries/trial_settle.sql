-- Completes the message $2 of the trial $1 with the token $3, after the answer $4.
--
-- Locks: the row. Repeating it: changes nothing more.
SELECT answer
FROM onceward.sidecar_settle_many(ARRAY[$1::text], ARRAY[1], ARRAY[$2::text], ARRAY[$3::uuid], ARRAY[$4::integer], ARRAY[NULL::text])
