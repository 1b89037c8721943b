const http = require('node:http')
const { Pool } = require('pg')

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 16, connectionTimeoutMillis: 5000 })
pool.on('error', (error) => console.error(error.message)) // a connection that breaks while idle would end the program

async function read(request) {
  const parts = []
  for await (const part of request) parts.push(part)
  const order = JSON.parse(Buffer.concat(parts))
  if (typeof order?.id !== 'string' || !Number.isInteger(order.cents)) throw new Error('not an order: id must be a string, cents an integer')
  return order
}

async function inTransaction(db, token, order) {
  await db.query('BEGIN')
  await db.query('SELECT onceward.complete($1)', [token])
  await db.query('INSERT INTO charges (order_id, cents) VALUES ($1, $2)', [order.id, order.cents])
  await db.query('COMMIT')
}

// The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
async function invoiced(db, token, order) {
  await db.query('BEGIN')
  await db.query('SELECT onceward.complete($1)', [token])
  await db.query('INSERT INTO charges (order_id, cents) VALUES ($1, $2)', [order.id, order.cents])
  await db.query("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))", [order.id, order.cents])
  await db.query('COMMIT')
}

// The same as the first in one round trip. Without BEGIN the statement is the transaction.
async function atOnce(db, token, order) {
  await db.query(
    `WITH c AS MATERIALIZED (SELECT onceward.complete($1))
     INSERT INTO charges (order_id, cents) SELECT $2, $3::integer FROM c`,
    [token, order.id, order.cents])
}

const works = { '/payments': inTransaction, '/payments/invoiced': invoiced, '/payments/at-once': atOnce }

async function charge(request) {
  let status = 400 // what an error means from here on: the message is wrong
  let db
  try {
    const order = await read(request)
    status = 503 // the database cannot be reached
    db = await pool.connect()
    status = 500 // rolled back; Onceward reads the row and does what is right
    await works[request.url](db, request.headers['onceward-token'], order)
    status = 204
  } catch (error) {
    console.error(error.message)
  } finally {
    db?.release(status !== 204) // after an error the connection goes, and what was open on it
  }
  return status
}

const server = http.createServer(async (request, response) => {
  const status = await charge(request)
  response.writeHead(status).end()
})
server.keepAliveTimeout = 0 // the sidecar closes its connections; a server that does may do so under a request
server.listen(process.env.PORT, '127.0.0.1')
