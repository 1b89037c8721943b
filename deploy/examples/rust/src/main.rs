use axum::{extract::State, http::{HeaderMap, StatusCode}, routing::post, Json, Router};
use deadpool_postgres::{Client, Pool, PoolConfig, Runtime};
use serde::Deserialize;
use tokio_postgres::{Error, NoTls};

#[derive(Deserialize)]
struct Order {
    id: String,
    cents: i32,
}

async fn in_transaction(db: &mut Client, token: &str, order: &Order) -> Result<(), Error> {
    let transaction = db.transaction().await?; // rolls back if it is dropped without a commit
    transaction.execute("SELECT onceward.complete($1)", &[&token]).await?;
    transaction.execute("INSERT INTO charges (order_id, cents) VALUES ($1, $2)", &[&order.id, &order.cents]).await?;
    transaction.commit().await
}

/// The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
async fn invoiced(db: &mut Client, token: &str, order: &Order) -> Result<(), Error> {
    let transaction = db.transaction().await?;
    transaction.execute("SELECT onceward.complete($1)", &[&token]).await?;
    transaction.execute("INSERT INTO charges (order_id, cents) VALUES ($1, $2)", &[&order.id, &order.cents]).await?;
    let publish = "SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))";
    transaction.execute(publish, &[&order.id, &order.cents]).await?;
    transaction.commit().await
}

/// The same as the first in one round trip: the statement is the transaction.
async fn at_once(db: &mut Client, token: &str, order: &Order) -> Result<(), Error> {
    let statement = db
        .prepare_cached(
            "WITH c AS MATERIALIZED (SELECT onceward.complete($1))
             INSERT INTO charges (order_id, cents) SELECT $2, $3 FROM c",
        )
        .await?;
    db.execute(&statement, &[&token, &order.id, &order.cents]).await?;
    Ok(())
}

// Json answers 400, 415 or 422 to what is no order, and 413 to a body above the limit: dead letters.
enum Work {
    InTransaction,
    Invoiced,
    AtOnce,
}

async fn charge(pool: Pool, headers: HeaderMap, order: Order, work: Work) -> StatusCode {
    let token = headers.get("onceward-token").and_then(|v| v.to_str().ok()).unwrap_or("");
    let Ok(mut db) = pool.get().await else {
        return StatusCode::SERVICE_UNAVAILABLE; // the database cannot be reached
    };
    let done = match work {
        Work::InTransaction => in_transaction(&mut db, token, &order).await,
        Work::Invoiced => invoiced(&mut db, token, &order).await,
        Work::AtOnce => at_once(&mut db, token, &order).await,
    };
    match done {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(error) => {
            eprintln!("{error}: {:?}", error.as_db_error().map(|e| e.message()));
            StatusCode::INTERNAL_SERVER_ERROR // rolled back; Onceward reads the row and does what is right
        }
    }
}

async fn payments(State(pool): State<Pool>, headers: HeaderMap, Json(order): Json<Order>) -> StatusCode {
    charge(pool, headers, order, Work::InTransaction).await
}

async fn payments_invoiced(State(pool): State<Pool>, headers: HeaderMap, Json(order): Json<Order>) -> StatusCode {
    charge(pool, headers, order, Work::Invoiced).await
}

async fn payments_at_once(State(pool): State<Pool>, headers: HeaderMap, Json(order): Json<Order>) -> StatusCode {
    charge(pool, headers, order, Work::AtOnce).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = deadpool_postgres::Config {
        url: Some(std::env::var("DATABASE_URL")?),
        pool: Some(PoolConfig::new(16)), // as many as forward.concurrency; the default is two for each core
        ..Default::default()
    };
    let pool = config.create_pool(Some(Runtime::Tokio1), NoTls)?;
    let application = Router::new()
        .route("/payments", post(payments))
        .route("/payments/invoiced", post(payments_invoiced))
        .route("/payments/at-once", post(payments_at_once))
        .layer(axum::extract::DefaultBodyLimit::max(16 << 20)) // the default is 2 MB
        .with_state(pool);
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", std::env::var("PORT")?)).await?;
    axum::serve(listener, application).await?;
    Ok(())
}
