#!/bin/sh
# The pipeline by Spark's own Kubernetes support, without an operator:
#   K8S=https://HOST:6443 ./spark-submit.sh
# kubectl apply -f rbac.yaml -f checkpoint.yaml comes first.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "${SPARK_SUBMIT:-spark-submit}" \
    --master "k8s://${K8S:?the address of the Kubernetes API, as https://HOST:6443}" \
    --deploy-mode cluster \
    --name flights \
    --conf spark.kubernetes.namespace="${NAMESPACE:-streams}" \
    --conf spark.kubernetes.container.image="${IMAGE:-headrace-spark:dev}" \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark-driver \
    --conf spark.kubernetes.authenticate.executor.serviceAccountName=spark-executor \
    --conf spark.kubernetes.driver.podTemplateFile="$here/driver-template.yaml" \
    --conf spark.kubernetes.executor.podTemplateFile="$here/executor-template.yaml" \
    --conf spark.sql.streaming.stateStore.providerClass=org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider \
    --conf spark.sql.shuffle.partitions=8 \
    --conf spark.executor.instances="${EXECUTORS:-2}" \
    --conf spark.executor.memory=1g \
    --conf spark.executor.pyspark.memory=512m \
    --conf spark.driver.memory=1g \
    local:///app/flights.py \
    --bootstrap "${BOOTSTRAP:-main-bootstrap.headrace.svc:9420}" \
    --token /var/run/secrets/headrace/token \
    --checkpoint /work/checkpoint \
    --parquet /work/delays
