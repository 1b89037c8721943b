-- Ends the claim with the token $3 on the message $2 of the trial $1, without an attempt.
--
-- Locks: the row. Repeating it: changes nothing more.
SELECT answer
FROM onceward.sidecar_fail_many(ARRAY[$1::text], ARRAY[1], ARRAY[$2::text], ARRAY[$3::uuid], ARRAY['ended by onceward try'], ARRAY[NULL::integer],
                                ARRAY[0::bigint], ARRAY[false], ARRAY[false], ARRAY[-1], ARRAY[-1])
