"""The operator: BrokerCluster, Topic and ConsumerGroup resources in, Kubernetes objects and admin
calls out. It talks to brokers only through the SDK's admin client."""
