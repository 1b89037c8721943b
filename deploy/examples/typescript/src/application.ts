import Fastify, { type FastifyReply, type FastifyRequest } from 'fastify'
import pg from 'pg'

interface Order { id: string, cents: number }
type Work = (db: pg.PoolClient, token: string, order: Order) => Promise<unknown>

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 16, connectionTimeoutMillis: 5000 })
pool.on('error', (error) => console.error(error.message)) // a connection that breaks while idle would end the program

const inTransaction: Work = async (db, token, order) => {
  await db.query('BEGIN')
  await db.query('SELECT onceward.complete($1)', [token])
  await db.query('INSERT INTO charges (order_id, cents) VALUES ($1, $2)', [order.id, order.cents])
  await db.query('COMMIT')
}

// The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
const invoiced: Work = async (db, token, order) => {
  await db.query('BEGIN')
  await db.query('SELECT onceward.complete($1)', [token])
  await db.query('INSERT INTO charges (order_id, cents) VALUES ($1, $2)', [order.id, order.cents])
  await db.query("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))", [order.id, order.cents])
  await db.query('COMMIT')
}

// The same as the first in one round trip. Without BEGIN the statement is the transaction.
const atOnce: Work = (db, token, order) => db.query(
  `WITH c AS MATERIALIZED (SELECT onceward.complete($1))
   INSERT INTO charges (order_id, cents) SELECT $2, $3::integer FROM c`,
  [token, order.id, order.cents])

const handler = (work: Work) => async (request: FastifyRequest, reply: FastifyReply) => {
  let db: pg.PoolClient
  try {
    db = await pool.connect()
  } catch (error) {
    request.log.error(error)
    return reply.code(503).send() // the database cannot be reached
  }
  let failed = true
  try {
    await work(db, String(request.headers['onceward-token']), request.body as Order)
    failed = false
  } catch (error) {
    request.log.error(error)
  } finally {
    db.release(failed) // after an error the connection goes, and what was open on it
  }
  return reply.code(failed ? 500 : 204).send() // 500: rolled back; Onceward reads the row and does what is right
}

// Fastify answers 400 to a body that is not JSON or does not fit the schema, 413 to one above bodyLimit, 415 to another content type.
const schema = { body: {
  type: 'object', required: ['id', 'cents'], properties: { id: { type: 'string' }, cents: { type: 'integer' } } } }
const application = Fastify({ logger: { level: 'error' }, bodyLimit: 16 << 20, keepAliveTimeout: 0, requestTimeout: 0,
  ajv: { customOptions: { coerceTypes: false } } }) // or null would be booked as 0
application.post('/payments', { schema }, handler(inTransaction))
application.post('/payments/invoiced', { schema }, handler(invoiced))
application.post('/payments/at-once', { schema }, handler(atOnce))
await application.listen({ host: '127.0.0.1', port: Number(process.env.PORT) })
