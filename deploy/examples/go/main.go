package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type order struct {
	ID    *string `json:"id"`
	Cents *int    `json:"cents"`
}

type work func(ctx context.Context, db *pgxpool.Conn, token string, o order) error

func inTransaction(ctx context.Context, db *pgxpool.Conn, token string, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT onceward.complete($1)", token); err != nil {
			return err // rolls back
		}
		_, err := tx.Exec(ctx, "INSERT INTO charges (order_id, cents) VALUES ($1, $2)", o.ID, o.Cents)
		return err
	})
}

// The same, and an invoice in the same transaction: a sidecar with an outbox sends it once this has committed.
func invoiced(ctx context.Context, db *pgxpool.Conn, token string, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT onceward.complete($1)", token); err != nil {
			return err // rolls back
		}
		if _, err := tx.Exec(ctx, "INSERT INTO charges (order_id, cents) VALUES ($1, $2)", o.ID, o.Cents); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT onceward.publish('invoices', 'created', jsonb_build_object('order', $1::text, 'cents', $2::integer))", o.ID, o.Cents)
		return err
	})
}

// The same as the first in one round trip: the statement is the transaction.
func atOnce(ctx context.Context, db *pgxpool.Conn, token string, o order) error {
	_, err := db.Exec(ctx, `WITH c AS MATERIALIZED (SELECT onceward.complete($1))
		INSERT INTO charges (order_id, cents) SELECT $2, $3 FROM c`, token, o.ID, o.Cents)
	return err
}

func handler(pool *pgxpool.Pool, do work) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o order
		if json.NewDecoder(r.Body).Decode(&o) != nil || o.ID == nil || o.Cents == nil {
			w.WriteHeader(http.StatusBadRequest) // the message is wrong: a dead letter
			return
		}
		db, err := pool.Acquire(r.Context())
		if err != nil {
			log.Print(err)
			w.WriteHeader(http.StatusServiceUnavailable) // the database cannot be reached
			return
		}
		defer db.Release()
		if err := do(r.Context(), db, r.Header.Get("Onceward-Token"), o); err != nil {
			log.Print(err)
			w.WriteHeader(http.StatusInternalServerError) // rolled back; Onceward reads the row and does what is right
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func main() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 16 // as many as forward.concurrency; the default is 4, or one for each core
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /payments", handler(pool, inTransaction))
	http.HandleFunc("POST /payments/invoiced", handler(pool, invoiced))
	http.HandleFunc("POST /payments/at-once", handler(pool, atOnce))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
