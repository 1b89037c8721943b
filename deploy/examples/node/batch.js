// Several messages in a request, one transaction for all of them. Needs `forward.batch` in the sidecar's configuration.
const http = require('node:http')
const { Pool } = require('pg')

const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: 16, connectionTimeoutMillis: 5000 })
pool.on('error', (error) => console.error(error.message)) // a connection that breaks while idle would end the program

async function read(request) {
  const parts = []
  for await (const part of request) parts.push(part)
  const { messages } = JSON.parse(Buffer.concat(parts))
  for (const { token, id } of messages) if (typeof token !== 'string' || typeof id !== 'string') throw new Error('no token or id')
  return messages
}

// "body" is absent where the body is not JSON that every reader takes: "body_base64" then.
const isOrder = ({ body }) => typeof body?.id === 'string' && Number.isInteger(body.cents)
const failure = ({ id }) => ({ id, status: 422, error: 'not an order: id must be a string, cents an integer' })

async function allOrNothing(db, tokens, orders, cents) {
  await db.query('BEGIN')
  await db.query('SELECT onceward.complete_all($1)', [tokens]) // raises if one token is not valid any more
  await db.query('INSERT INTO charges (order_id, cents) SELECT * FROM unnest($1::text[], $2::integer[])', [orders, cents])
  await db.query('COMMIT')
}

async function validOnes(db, tokens, orders, cents) {
  await db.query(
    `INSERT INTO charges (order_id, cents) SELECT m.order_id, m.cents
     FROM onceward.complete_valid($1::text[]) v (token)
     JOIN unnest($1::text[], $2::text[], $3::integer[]) m (token, order_id, cents) USING (token)`,
    [tokens, orders, cents])
}

async function charge(path, messages) {
  const good = messages.filter(isOrder)
  const failures = messages.filter((m) => !isOrder(m)).map(failure)
  if (failures.length && path === '/payments/all') return [422, []] // for all: Onceward looks for the wrong one
  let db, done
  try {
    db = await pool.connect()
    const work = path === '/payments/all' ? allOrNothing : validOnes
    await work(db, good.map((m) => m.token), good.map((m) => m.body.id), good.map((m) => m.body.cents))
    done = true
    return [200, failures]
  } catch (error) {
    console.error(error.message)
    return [db ? 500 : 503, []] // rolled back
  } finally {
    db?.release(!done) // after an error the connection goes, and what was open on it
  }
}

const server = http.createServer(async (request, response) => {
  let messages = [], status = 500, failures = []
  try {
    messages = await read(request)
    ;[status, failures] = await charge(request.url, messages)
  } catch (error) { // not answering would look like a crash
    console.error(`not a batch: ${error.message}`)
  }
  response.writeHead(status, { 'Onceward-Batch': messages.length }) // all succeeded, but for the named ones
  response.end(JSON.stringify({ failures }))
})
server.keepAliveTimeout = 0 // the sidecar closes its connections; a server that does may do so under a request
server.listen(process.env.PORT, '127.0.0.1')
