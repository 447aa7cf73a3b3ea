"""The HTTP API fuzzed from the document that the broker itself serves. What is sent follows the
document or breaks it on purpose; every answer must be as documented, and none may be a 5xx.

That every documented request is *accepted* is not asked: the document can't say which topics there
are, which settings go together, or what a batch's checksum is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.generation.case import Case
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi import checks

from headrace.protocol import routes
from headrace.protocol.requests import BATCH_MEDIA_TYPE
from testkit.brokers import BrokerProcess
from testkit.http import one_batch

EXAMPLES, EXAMPLES_SOAK = 40, 400
TOPIC = "fuzzed"
"""A topic that is there, so that some requests get past the question whether it is."""

OPERATIONS = [
    ("GET", routes.CLUSTER), ("GET", routes.BROKERS), ("GET", routes.BROKER),
    ("GET", routes.TOPICS), ("POST", routes.TOPICS), ("GET", routes.TOPIC),
    ("PATCH", routes.TOPIC), ("DELETE", routes.TOPIC), ("POST", routes.RECORDS),
    ("GET", routes.PARTITION_RECORDS),
    ("POST", routes.OFFSETS), ("POST", routes.DELETE_RECORDS), ("GET", routes.GROUPS),
    ("GET", routes.GROUP), ("DELETE", routes.GROUP), ("GET", routes.GROUP_OFFSETS),
    ("POST", routes.GROUP_OFFSETS), ("POST", routes.GROUP_HEARTBEAT),
    ("POST", routes.CREATE_TOPICS), ("POST", routes.ALTER_TOPICS),
    ("POST", routes.DESCRIBE_TOPICS), ("GET", routes.CLUSTER_CONFIG),
    ("GET", routes.CLUSTER_HEALTH), ("GET", routes.RESTART_CHECK), ("GET", routes.PLACEMENT),
    ("GET", routes.REASSIGNMENTS), ("POST", routes.REASSIGNMENTS),
    ("DELETE", routes.REASSIGNMENTS), ("POST", routes.ELECT_LEADER),
    ("POST", routes.CLUSTER_RECOVER), ("PATCH", routes.CLUSTER_CONFIG),
    # The last: a broker that is cordoned takes no topics.
    ("POST", routes.CORDON), ("POST", routes.DRAIN), ("POST", routes.UNCORDON),
]  # fmt: skip
BINARY = [routes.PRODUCE, routes.FETCH]
UNFUZZED = [("GET", routes.OPENAPI)]
"""schemathesis leaves out the path that it got the document from."""

NOTHING_TO_GET_WRONG = {
    ("GET", routes.CLUSTER_CONFIG), ("GET", routes.REASSIGNMENTS),
    ("GET", routes.CLUSTER), ("GET", routes.BROKERS), ("GET", routes.GROUPS),
}  # fmt: skip

EACH_FOR_ITSELF = {routes.CREATE_TOPICS, routes.ALTER_TOPICS, routes.DESCRIBE_TOPICS}
"""What is wrong with one topic of many is answered beside the others, with 200."""

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that keeps no long poll waiting for long: any wait may be asked of it."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("broker"), HEADRACE_FETCH_WAIT_MS_MAX="20"
    ).start()
    yield process
    assert process.stop() == 0, process.log_text[-4000:]
    assert " ERROR " not in process.log_text, process.log_text[-4000:]


@pytest.fixture(scope="module")
def document(broker: BrokerProcess) -> BaseSchema:
    """What the broker says of itself."""
    load_all_checks()
    return schemathesis.openapi.from_url(broker.url + routes.OPENAPI)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all."""
    with requests.Session() as kept:
        yield kept


def send(case: Case[Any], session: requests.Session) -> None:
    """Sends a case and checks the answer."""
    left_out = {checks.negative_data_rejection} if case.path in EACH_FOR_ITSELF else set()
    asked = [check for check in CHECKS if check not in left_out]
    case.call_and_validate(session=session, checks=asked, timeout=30)


def aim(case: Case[Any], broker: BrokerProcess, session: requests.Session) -> bool:
    """Points a case at the topic that exists (made again if a case deleted it)."""
    parameters = case.path_parameters
    if "topic" not in parameters:
        return False
    session.post(broker.url + routes.TOPICS, json={"name": TOPIC, "partitions": 2}, timeout=30)
    parameters["topic"] = TOPIC
    if "partition" in parameters and isinstance(parameters["partition"], int):
        parameters["partition"] %= 3
    return True


def limited(examples: int) -> settings:
    """So many examples, not shrunk: an answer is as clear unshrunk."""
    return settings(
        max_examples=examples, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip


def fuzz(
    operation: APIOperation[Any, Any, Any, Any],
    broker: BrokerProcess,
    session: requests.Session,
    examples: int,
) -> None:
    """Requests that follow the document and requests that don't."""

    def run(case: Case[Any]) -> None:
        send(case, session)
        if aim(case, broker, session):
            send(case, session)

    modes = [GenerationMode.POSITIVE]
    if (operation.method.upper(), operation.path) not in NOTHING_TO_GET_WRONG:
        modes.append(GenerationMode.NEGATIVE)
    for mode in modes:
        limited(examples)(given(case=operation.as_strategy(generation_mode=mode))(run))()


ids = st.sampled_from([b"", b"x" * 16, b"x" * 17]) | st.binary(max_size=20)
numbers = st.sampled_from([-1, 0, 1, 2, 1000, 2**31, 2**63 - 1, -(2**63), 2**64 - 1])
anything = st.none() | numbers | st.binary(max_size=9) | st.text(max_size=9) | st.floats()
part_lists = st.lists(
    st.tuples(ids | st.just(TOPIC), numbers | anything, numbers | anything, numbers, anything),
    max_size=4,
)
heads = st.one_of(
    st.tuples(st.sampled_from([-1, 0, 1]), st.just(1000), part_lists),
    st.tuples(st.just(0), st.just(1), st.just(1 << 20), st.just(0), part_lists),
    st.lists(anything, max_size=6),
)
tails = st.binary(max_size=200) | st.just(one_batch(b"value"))
bodies = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda head, tail: framed(msgspec.msgpack.encode(head)) + tail, heads, tails),
)


def framed(head: bytes) -> bytes:
    """A head with its length in front."""
    return struct.pack("<I", len(head)) + head


def fuzz_binary(broker: BrokerProcess, session: requests.Session, path: str, examples: int) -> None:
    """Bodies that are frames nearly, and bodies that are nothing."""

    def run(body: bytes) -> None:
        answer = session.post(
            broker.url + path, data=body, headers={"Content-Type": BATCH_MEDIA_TYPE}, timeout=30
        )
        if answer.status_code == 200:
            assert answer.headers["Content-Type"] == BATCH_MEDIA_TYPE
        else:
            assert answer.status_code == 400, (body, answer.text)
            assert answer.json()["code"] == "invalid_request"

    limited(examples)(given(body=bodies)(run))()


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=str)
def test_every_answer_is_as_documented_and_none_is_a_servers_error(
    broker: BrokerProcess, document: BaseSchema, session: requests.Session, method: str, path: str
) -> None:
    fuzz(document[path][method], broker, session, EXAMPLES)


@pytest.mark.parametrize("path", BINARY)
def test_whatever_comes_as_a_frame_is_answered_or_refused(
    broker: BrokerProcess, session: requests.Session, path: str
) -> None:
    fuzz_binary(broker, session, path, 10 * EXAMPLES)


def test_every_documented_operation_is_fuzzed(document: BaseSchema) -> None:
    found = [
        (method.upper(), path)
        for path, methods in document.raw_schema["paths"].items()
        for method in methods
    ]
    assert sorted(found) == sorted(OPERATIONS + [("POST", path) for path in BINARY] + UNFUZZED)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=str)
def test_many_more_of_the_same(
    broker: BrokerProcess, document: BaseSchema, session: requests.Session, method: str, path: str
) -> None:
    fuzz(document[path][method], broker, session, EXAMPLES_SOAK)


@pytest.mark.soak
@pytest.mark.parametrize("path", BINARY)
def test_many_more_frames(broker: BrokerProcess, session: requests.Session, path: str) -> None:
    fuzz_binary(broker, session, path, 20 * EXAMPLES_SOAK)
