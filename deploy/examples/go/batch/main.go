// Several messages in a request, one transaction for all of them. Needs `forward.batch` in the sidecar's configuration.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type order struct {
	ID    *string `json:"id"`
	Cents *int32  `json:"cents"`
}

type message struct {
	Token, ID string
	Body      json.RawMessage // empty where the body is not JSON that every reader takes: "body_base64" then
}

type failure struct {
	ID     string `json:"id"`
	Status int    `json:"status"`
	Error  string `json:"error"`
}

type charges struct {
	tokens, orders []string
	cents          []int32
}

func (c *charges) add(m message) bool {
	var o order
	if json.Unmarshal(m.Body, &o) != nil || o.ID == nil || o.Cents == nil {
		return false
	}
	c.tokens, c.orders, c.cents = append(c.tokens, m.Token), append(c.orders, *o.ID), append(c.cents, *o.Cents)
	return true
}

func allOrNothing(ctx context.Context, tx pgx.Tx, c charges) error {
	if _, err := tx.Exec(ctx, "SELECT onceward.complete_all($1)", c.tokens); err != nil {
		return err // one token is not valid any more: rolls back
	}
	_, err := tx.Exec(ctx, "INSERT INTO charges (order_id, cents) SELECT * FROM unnest($1::text[], $2::integer[])", c.orders, c.cents)
	return err
}

func validOnes(ctx context.Context, tx pgx.Tx, c charges) error {
	_, err := tx.Exec(ctx, `INSERT INTO charges (order_id, cents) SELECT m.order_id, m.cents
		FROM onceward.complete_valid($1::text[]) v (token)
		JOIN unnest($1::text[], $2::text[], $3::integer[]) m (token, order_id, cents) USING (token)`, c.tokens, c.orders, c.cents)
	return err
}

func charge(r *http.Request, pool *pgxpool.Pool, messages []message) (int, []failure) {
	c, failures, work := charges{tokens: []string{}}, []failure{}, validOnes
	for _, m := range messages {
		if !c.add(m) {
			failures = append(failures, failure{m.ID, 422, "not an order: id must be a string, cents an integer"})
		}
	}
	if r.URL.Path == "/payments/all" {
		work = allOrNothing
		if len(failures) > 0 {
			return http.StatusUnprocessableEntity, nil // for all: Onceward looks for the wrong one
		}
	}
	db, err := pool.Acquire(r.Context())
	if err != nil {
		log.Print(err)
		return http.StatusServiceUnavailable, nil
	}
	defer db.Release()
	err = pgx.BeginFunc(r.Context(), db, func(tx pgx.Tx) error { return work(r.Context(), tx, c) })
	if err != nil {
		log.Print(err)
		return http.StatusInternalServerError, nil // rolled back
	}
	return http.StatusOK, failures
}

func main() {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Messages []message }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			log.Print("not a batch: ", err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		status, failures := charge(r, pool, request.Messages)
		w.Header().Set("Onceward-Batch", strconv.Itoa(len(request.Messages))) // all succeeded, but for the named ones
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]any{"failures": failures})
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
