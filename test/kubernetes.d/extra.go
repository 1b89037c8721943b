package main

// What the scenarios need of the application beside deploy/examples/go, which this file is built with: to take more memory than it may have,
// to end with 0 when it is told to, or by itself, to book an order without a token (completion response), and to book a message of any size
// by its id, but for those that it refuses.

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

var eaten [][]byte

func eat(http.ResponseWriter, *http.Request) {
	for {
		page := make([]byte, 16<<20)
		for i := 0; i < len(page); i += 4096 {
			page[i] = 1
		}
		eaten = append(eaten, page)
	}
}

var pool = sync.OnceValues(func() (*pgxpool.Pool, error) {
	return pgxpool.New(context.Background(), os.Getenv("DATABASE_URL")+"&pool_max_conns=16")
})

func withoutToken(w http.ResponseWriter, r *http.Request) {
	var o order
	if json.NewDecoder(r.Body).Decode(&o) != nil || o.ID == nil || o.Cents == nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	db, err := pool()
	if err == nil {
		_, err = db.Exec(r.Context(), "INSERT INTO charges (order_id, cents) VALUES ($1, $2)", o.ID, o.Cents)
	}
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func large(w http.ResponseWriter, r *http.Request) {
	_, err := io.Copy(io.Discard, r.Body)
	id := r.Header.Get("Onceward-Message-Id")
	if strings.HasPrefix(id, "refused") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var db *pgxpool.Pool
	if err == nil {
		db, err = pool()
	}
	if err == nil {
		_, err = db.Exec(r.Context(), `WITH c AS MATERIALIZED (SELECT onceward.complete($1))
			INSERT INTO charges (order_id, cents) SELECT $2, 1 FROM c`, r.Header.Get("Onceward-Token"), id)
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func init() {
	http.HandleFunc("POST /eat", eat)
	http.HandleFunc("POST /payments/large", large)
	http.HandleFunc("POST /payments/response", withoutToken)
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	go func() {
		<-told
		os.Exit(0)
	}()
	if after, err := time.ParseDuration(os.Getenv("END_AFTER")); err == nil {
		time.AfterFunc(after, func() { os.Exit(0) })
	}
}
