# Images of Headrace. `make images` builds them all; one of them:
#
#   docker build --target broker -t headrace-broker:dev .        (podman build and buildah build take the same)
#
#   headrace   the default: brokers and operator in one, what the chart and BrokerCluster.spec.image name
#   broker     brokers only, with the store in Kubernetes
#   operator   the operator only
#   cli        the command line
#   spark      Spark with Python, format("headrace") and the flights pipeline, for driver and executors
#
# Another Python is a build argument: --build-arg BASE=python:3.11-slim. So is another index:
# --build-arg PIP_INDEX_URL=https://pypi.example/simple.

ARG BASE=python:3.13-slim
ARG SPARK=spark:4.3.0-scala2.13-java17-ubuntu

# --- wheels: the only stage that sees sources and the network ------------------------------------

FROM ${BASE} AS wheels
ARG PIP_INDEX_URL=https://pypi.org/simple
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY broker/src broker/src
COPY operator/src operator/src
COPY sdk/src sdk/src
COPY spark/src spark/src
RUN pip wheel --no-cache-dir --disable-pip-version-check --wheel-dir /wheels \
        ".[arrow,broker,kubernetes,operator,spark]" "pandas>=2.2,<3"
COPY images/install.sh images/prune.sh /build/

# --- environments: out of the wheels alone, without pip in them ----------------------------------

FROM wheels AS broker-environment
RUN sh /build/install.sh "headrace[broker,kubernetes]"

FROM wheels AS operator-environment
RUN sh /build/install.sh "headrace[operator]"

FROM wheels AS headrace-environment
RUN sh /build/install.sh "headrace[broker,kubernetes,operator]"

FROM wheels AS cli-environment
RUN sh /build/install.sh "headrace"

FROM wheels AS spark-environment
RUN sh /build/install.sh "headrace[spark]" "pandas"

# --- what runs -----------------------------------------------------------------------------------
# Nobody's root: the operator runs brokers as 10001. Nothing is written but below /var/lib/headrace
# and /tmp, so the root may be read-only. Bytecode is in the image; none would be kept.

FROM ${BASE} AS runtime
RUN install -d -o 10001 -g 10001 /var/lib/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["headrace"]

FROM runtime AS cli
COPY --from=cli-environment /opt/headrace /opt/headrace
CMD ["--help"]

FROM runtime AS operator
COPY --from=operator-environment /opt/headrace /opt/headrace
EXPOSE 9421
CMD ["operator"]

FROM runtime AS broker
COPY --from=broker-environment /opt/headrace /opt/headrace
ENV HEADRACE_DATA_DIR=/var/lib/headrace \
    HEADRACE_HOST=0.0.0.0
VOLUME /var/lib/headrace
EXPOSE 9420 9421
CMD ["broker"]

# Java and Spark from Apache's image, Python from ours: Apache's has Ubuntu 22.04's 3.10, which is
# too old. 185 is the user of Apache's image; Hadoop wants it to have a name.

FROM ${SPARK} AS spark-distribution

FROM ${BASE} AS spark
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini gosu procps libnss-wrapper \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 185 spark \
    && useradd --system --uid 185 --gid spark --home-dir /nonexistent spark
COPY --from=spark-distribution /opt/java /opt/java
COPY --from=spark-distribution /opt/entrypoint.sh /opt/decom.sh /opt/
COPY --from=spark-distribution --chown=185:185 /opt/spark /opt/spark
COPY --from=spark-environment /opt/headrace /opt/headrace
COPY examples/spark/flights.py /app/flights.py
ENV JAVA_HOME=/opt/java/openjdk \
    SPARK_HOME=/opt/spark \
    PYSPARK_PYTHON=/opt/headrace/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/headrace/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/headrace/bin:/opt/java/openjdk/bin:/opt/spark/bin:$PATH
WORKDIR /opt/spark/work-dir
USER 185
ENTRYPOINT ["/opt/entrypoint.sh"]

FROM runtime AS headrace
COPY --from=headrace-environment /opt/headrace /opt/headrace
ENV HEADRACE_DATA_DIR=/var/lib/headrace \
    HEADRACE_HOST=0.0.0.0
VOLUME /var/lib/headrace
EXPOSE 9420 9421
CMD ["broker"]
