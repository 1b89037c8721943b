// Redpanda Connect with the components that the comparison needs: amqp_0_9, http, sql (PostgreSQL), pure.
package main

import (
	"context"

	"github.com/redpanda-data/benthos/v4/public/service"

	_ "github.com/lib/pq"
	_ "github.com/redpanda-data/connect/v4/public/components/amqp09"
	_ "github.com/redpanda-data/connect/v4/public/components/io"
	_ "github.com/redpanda-data/connect/v4/public/components/prometheus"
	_ "github.com/redpanda-data/connect/v4/public/components/pure"
	_ "github.com/redpanda-data/connect/v4/public/components/sql/base"
)

func main() {
	service.RunCLI(context.Background(), service.CLIOptSetVersion("v4.49.1", ""))
}
