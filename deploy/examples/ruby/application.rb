require "json"
require "pg"
require "sinatra"

set :bind, "127.0.0.1"
set :port, ENV.fetch("PORT")
set :server_settings, Threads: "0:16" # as many as forward.concurrency; Puma's default is 5
set :logging, false
set :quiet, true
set :protection, except: [:remote_token, :session_hijacking] # and host checks: see ../TRAPS.md

# A connection for each thread of the server.
def database
  kept = Thread.current.thread_variable_get(:database)
  return kept if kept && !kept.finished? && kept.status == PG::CONNECTION_OK
  PG.connect(ENV.fetch("DATABASE_URL")).tap { |db| Thread.current.thread_variable_set(:database, db) }
end

def in_transaction(db, token, id, cents)
  db.transaction do
    db.exec_params("SELECT onceward.complete($1)", [token])
    db.exec_params("INSERT INTO charges (order_id, cents) VALUES ($1, $2)", [id, cents])
  end
end

# The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
def invoiced(db, token, id, cents)
  db.transaction do
    db.exec_params("SELECT onceward.complete($1)", [token])
    db.exec_params("INSERT INTO charges (order_id, cents) VALUES ($1, $2)", [id, cents])
    db.exec_params("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))", [id, cents])
  end
end

# The same as the first in one round trip: the statement is the transaction.
def at_once(db, token, id, cents)
  db.exec_params(<<~SQL, [token, id, cents])
    WITH c AS MATERIALIZED (SELECT onceward.complete($1))
    INSERT INTO charges (order_id, cents) SELECT $2, $3::integer FROM c
  SQL
end

def charge(request)
  status = 400 # what an error means from here on: the message is wrong
  order = JSON.parse(request.body.read, symbolize_names: true)
  raise "not an order: id must be a string, cents an integer" unless order in {id: String => id, cents: Integer => cents}
  status = 503 # the database cannot be reached
  db = database
  status = 500 # rolled back; Onceward reads the row and does what is right
  yield db, request.env["HTTP_ONCEWARD_TOKEN"], id, cents
  204
rescue StandardError => error
  warn error.message
  status
end

post("/payments") { charge(request) { |*values| in_transaction(*values) } }
post("/payments/invoiced") { charge(request) { |*values| invoiced(*values) } }
post("/payments/at-once") { charge(request) { |*values| at_once(*values) } }
