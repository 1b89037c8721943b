// Evaluates LogQL over lines with Loki's own engine, without a Loki: tests on standard input, the times at which each query has an answer
// on standard output. Loki's limit of series is kept: a query that would exceed it fails. Built by cluster.sh build-rules.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/grafana/dskit/user"
	"github.com/grafana/loki/v3/pkg/logproto"
	"github.com/grafana/loki/v3/pkg/logql"
	"github.com/grafana/loki/v3/pkg/logqlmodel"
	"github.com/prometheus/prometheus/promql"
)

const maxSeries = 500 // limits_config.max_query_series, where nothing is said
const maxLines = 1000 // what Grafana asks for

type line struct {
	At   int64  `json:"at"` // ns
	Text string `json:"text"`
}

type query struct {
	Name  string `json:"name"`
	Expr  string `json:"expr"`
	Start int64  `json:"start"` // ns
	End   int64  `json:"end"`
	Step  int64  `json:"step"` // s
}

type test struct {
	Streams map[string][]line `json:"streams"` // by labels
	Queries []query           `json:"queries"`
}

type limits struct{ logql.Limits }

func (limits) MaxQuerySeries(context.Context, string) int { return maxSeries }

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// The seconds at which a query has an answer, by series; of lines the first.
func ask(engine *logql.QueryEngine, q query) [][]float64 {
	params := must(logql.NewLiteralParams(q.Expr, time.Unix(0, q.Start), time.Unix(0, q.End), time.Duration(q.Step)*time.Second, 0,
		logproto.FORWARD, maxLines, nil, nil))
	result, err := engine.Query(params).Exec(user.InjectOrgID(context.Background(), "test"))
	if err != nil {
		log.Fatalf("%s: %v", q.Name, err)
	}
	found := [][]float64{}
	switch data := result.Data.(type) {
	case promql.Matrix:
		for _, series := range data {
			times := []float64{}
			for _, point := range series.Floats {
				times = append(times, float64(point.T)/1000)
			}
			found = append(found, times)
		}
	case logqlmodel.Streams:
		for _, stream := range data {
			found = append(found, []float64{float64(stream.Entries[0].Timestamp.Unix())})
		}
	case promql.Vector:
		for _, sample := range data {
			found = append(found, []float64{float64(sample.T) / 1000})
		}
	default:
		log.Fatalf("%s: %T", q.Name, data)
	}
	return found
}

func main() {
	var tests map[string]test
	if err := json.NewDecoder(os.Stdin).Decode(&tests); err != nil {
		log.Fatal(err)
	}
	answers := map[string]map[string][][]float64{}
	for name, t := range tests {
		var streams []logproto.Stream
		for labels, lines := range t.Streams {
			stream := logproto.Stream{Labels: labels}
			for _, l := range lines {
				stream.Entries = append(stream.Entries, logproto.Entry{Timestamp: time.Unix(0, l.At), Line: l.Text})
			}
			streams = append(streams, stream)
		}
		engine := logql.NewEngine(logql.EngineOpts{}, logql.NewMockQuerier(0, streams), limits{logql.NoLimits}, nil)
		answers[name] = map[string][][]float64{}
		for _, q := range t.Queries {
			answers[name][q.Name] = ask(engine, q)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}
