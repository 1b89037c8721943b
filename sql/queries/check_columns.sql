-- Columns that a table lacks, or that may not be NULL although this program does not write them; NULL: none. Finds a
-- table of another shape under the same version: changed by hand, or half restored. Also tables with row-level
-- security for this role: an id that it hides would be processed again.
--
-- Locks: none. Repeating it: only reads.
WITH wanted (relation, needed, optional) AS (VALUES
    ('onceward.inbox'::regclass,
     '{token,status,received_at,token_expires_at,max_expires_at,attempt,fingerprint,message_id,consumer,claimed_by}'::name[],
     '{http_status,completed_at,alive_since,next_attempt_at,message_type,last_error,result,crashes,takeovers,alone,unproven_at,unproven_step,renewals,renewals_until,batch_cap,swept}'::name[]),
    ('onceward.dead_letter',
     '{id,consumer,vhost,queue,rowless,reason,attempts,body,exchange,routing_key,deaths,died_at}',
     '{message_id,raw_id,http_status,last_error,fingerprint,content_type,message_type,properties,headers,digest,content_header}'),
    ('onceward.horizon', '{only_one,passed,order_changes}', '{}'),
    ('onceward.letter_lock', '{number}', '{}'),
    ('onceward.control', '{consumer,paused,give_up,held_number,retry_number,stopped}', '{reason,by,since,give_up_by,held_by,held_at,retry_by}'),
    ('onceward.replica', '{instance,number,counter,version,host,queues,seen_at}', '{may_consume}'),
    ('onceward.message', '{consumer,message_id,received_at,seq,exchange,routing_key,body}', '{message_type,content_header}'),
    ('onceward.replay', '{name,what,received_at,seq,n,began_at,moved_at}', '{}'),
    ('onceward.consumer',
     '{consumer,broker,vhost,queue,first_used_at,keeper_page,history_page,order_key,order_changed}',
     '{keeper,kept_until,number,retention_ms,retention_at,history_day,compacted_to}'),
    ('onceward.history', '{hash,print,consumer,day}', '{}'),
    ('onceward.history_begun', '{began_at}', '{}'),
    ('onceward.outbox', '{only_one,lease}', '{broker,vhost,first_used_at,holder,number,held_until}'),
    ('onceward.outbox_0', '{xid,seq,published_at,exchange,routing_key,message_id,body}', '{type,headers,properties}'),
    ('onceward.outbox_1', '{xid,seq,published_at,exchange,routing_key,message_id,body}', '{type,headers,properties}'),
    ('onceward.outbox_2', '{xid,seq,published_at,exchange,routing_key,message_id,body}', '{type,headers,properties}'),
    ('onceward.outbox_position',
     '{lease,n,system_identifier,table_oid,done,floor,done_by,emptied}',
     '{upto,ceiling,last,upto_floor,upto_by,turned,turned_by,turned_at,resending}'),
    ('onceward.outbox_parked', '{n,seq,published_at,exchange,routing_key,message_id,body}', '{type,headers,properties}'),
    ('onceward.outbox_life', '{life}', '{}')
)
SELECT string_agg(what, ', ')
FROM (
    SELECT w.relation || '.' || c || ' is missing' AS what
    FROM wanted w, unnest(w.needed || w.optional) c
    WHERE NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = w.relation AND a.attname = c AND NOT a.attisdropped)
    UNION ALL
    SELECT w.relation || '.' || a.attname || ' may not be NULL'
    FROM wanted w
    JOIN pg_catalog.pg_attribute a ON a.attrelid = w.relation AND a.attnum > 0 AND NOT a.attisdropped
    WHERE a.attnotnull AND a.attname <> ALL (w.needed)
      AND (a.attname = ANY (w.optional) OR NOT a.atthasdef AND a.attidentity = '')
    UNION ALL
    SELECT w.relation || ' has row-level security, which may hide rows: ALTER TABLE ' || w.relation || ' DISABLE ROW LEVEL SECURITY'
    FROM wanted w WHERE pg_catalog.row_security_active(w.relation)
) found
