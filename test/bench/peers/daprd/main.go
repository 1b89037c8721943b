// daprd with the RabbitMQ pub/sub component only. Run is the one of daprd's own cmd/daprd/app, which lib/peers_build.py takes from the
// module as it is, less the import of all components: its main refuses to be built without them.
package main

import (
	"github.com/dapr/components-contrib/pubsub/rabbitmq"
	pubsub "github.com/dapr/dapr/pkg/components/pubsub"
)

func main() {
	pubsub.DefaultRegistry.RegisterComponent(rabbitmq.NewRabbitMQ, "rabbitmq")
	Run()
}
