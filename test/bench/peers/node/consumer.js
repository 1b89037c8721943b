// The textbook inbox in Node: insert on conflict do nothing, POST, update, ack. A pool, keep-alive, prefetch, all deliveries
// in parallel. Everything comes from the environment: AMQP_URL, QUEUE, PREFETCH, DATABASE_URL, POOL, APP_URL, CONCURRENCY, INBOX.
// INBOX=application: no table of its own here; the application keeps the inbox in its own transaction.
'use strict';
const amqp = require('amqplib');
const { Pool } = require('pg');
const undici = require('undici');

const { AMQP_URL, QUEUE, DATABASE_URL, APP_URL, INBOX } = process.env;
const prefetch = Number(process.env.PREFETCH);
const app = new URL(APP_URL);
const http = new undici.Pool(app.origin, { connections: Number(process.env.CONCURRENCY), pipelining: 1 });
const db = INBOX === 'application' ? null : new Pool({ connectionString: DATABASE_URL, max: Number(process.env.POOL) });

const INSERT = {
  name: 'insert',
  text: "INSERT INTO inbox (message_id, status) VALUES ($1, 'processing') ON CONFLICT (message_id) DO NOTHING",
};
const STATUS = { name: 'status', text: 'SELECT status FROM inbox WHERE message_id = $1' };
const UPDATE = { name: 'update', text: "UPDATE inbox SET status = 'completed', completed_at = now() WHERE message_id = $1" };

// The dispatcher's own handlers: request() would make a stream for each answer.
function post(id, body, contentType) {
  return new Promise((resolve, reject) => {
    let status;
    http.dispatch({ path: app.pathname, method: 'POST', body, headers: ['content-type', contentType, 'idempotency-key', `"${id}"`] }, {
      onConnect() {},
      onHeaders(code) { status = code; return true; },
      onData() { return true; },
      onComplete() { if (status < 300) resolve(); else reject(new Error(`status ${status}`)); },
      onError: reject,
    });
  });
}

async function handle(channel, message) {
  const id = message.properties.messageId;
  try {
    if (db) {
      const inserted = await db.query({ ...INSERT, values: [id] });
      if (inserted.rowCount === 0) {
        const found = await db.query({ ...STATUS, values: [id] });
        if (found.rows[0].status === 'completed') {
          channel.ack(message);
          return;
        }
      }
    }
    await post(id, message.content, message.properties.contentType);
    if (db) await db.query({ ...UPDATE, values: [id] });
    channel.ack(message);
  } catch (error) {
    console.error(error.message);
    channel.nack(message, false, true);
  }
}

async function main() {
  const connection = await amqp.connect(AMQP_URL, { noDelay: true });
  const channel = await connection.createChannel();
  await channel.prefetch(prefetch);
  const out = new Set();
  const { consumerTag } = await channel.consume(QUEUE, (message) => {
    if (!message) return;
    const work = handle(channel, message).finally(() => out.delete(work));
    out.add(work);
  });
  process.on('SIGTERM', async () => {
    await channel.cancel(consumerTag);
    await Promise.all(out);
    await channel.close();
    await connection.close();
    if (db) await db.end();
    process.exit(0);
  });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
