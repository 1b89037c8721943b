"""FastAPI and psycopg 3. Plain `def` handlers run in a pool of threads, so a connection pool of threads fits."""

import os
from contextlib import asynccontextmanager

import psycopg
from fastapi import FastAPI, Header, Response
from psycopg_pool import ConnectionPool, PoolTimeout
from pydantic import BaseModel

pool = ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=16, timeout=5, open=False, check=ConnectionPool.check_connection)


@asynccontextmanager
async def lifespan(_: FastAPI):
    pool.open()
    yield
    pool.close()


app = FastAPI(lifespan=lifespan)


class Order(BaseModel, strict=True):  # what does not fit is answered 422: a dead letter; not strict, "250" and true would be integers
    id: str
    cents: int


def in_transaction(db: psycopg.Connection, token: str, order: Order) -> None:
    db.execute("SELECT onceward.complete(%s)", [token])
    db.execute("INSERT INTO charges (order_id, cents) VALUES (%s, %s)", [order.id, order.cents])


def invoiced(db: psycopg.Connection, token: str, order: Order) -> None:
    """The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed."""
    in_transaction(db, token, order)
    db.execute("SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', %s::text, 'cents', %s::integer))", [order.id, order.cents])


def at_once(db: psycopg.Connection, token: str, order: Order) -> None:
    """The same as the first in one statement."""
    db.execute("""WITH c AS MATERIALIZED (SELECT onceward.complete(%s))
                  INSERT INTO charges (order_id, cents) SELECT %s, %s FROM c""", [token, order.id, order.cents])


def charge(work, order: Order, token: str) -> Response:
    try:
        # Commits at its end, so before the answer; not in a dependency with yield, which ends after it.
        with pool.connection() as db:
            work(db, token, order)
    except PoolTimeout:
        return Response(status_code=503)  # the database cannot be reached
    return Response(status_code=204)  # any other error is a 500: rolled back


@app.post("/payments")
def payments(order: Order, onceward_token: str = Header()) -> Response:
    return charge(in_transaction, order, onceward_token)


@app.post("/payments/invoiced")
def payments_invoiced(order: Order, onceward_token: str = Header()) -> Response:
    return charge(invoiced, order, onceward_token)


@app.post("/payments/at-once")
def payments_at_once(order: Order, onceward_token: str = Header()) -> Response:
    return charge(at_once, order, onceward_token)


if __name__ == "__main__":
    import uvicorn
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error", timeout_keep_alive=3600)
