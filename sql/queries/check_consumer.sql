-- The registration of the consumer $1, the other consumer that has the queue $3 of the virtual host $2, and whether a
-- replica runs with the recorded order.key. $4: the former queue or consumer, NULL: none.
--
-- Locks: none. Repeating it: only reads.
SELECT c.vhost, c.queue,
       (SELECT min(o.consumer) FROM onceward.consumer o WHERE o.consumer <> $1 AND o.vhost = $2 AND onceward.queues_meet(o.queue, $3)),
       onceward.queue_hull(c.queue, $3) IS NOT NULL,
       c.queue IN ($4, onceward.queue_hull($3, $4)) IS TRUE, c.order_key,
       onceward.consumer_order_runs(c.consumer, c.order_key)
FROM (SELECT) one
LEFT JOIN onceward.consumer c ON c.consumer = $1
