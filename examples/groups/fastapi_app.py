"""A web service that takes orders and handles them as a member of a group.

pip install headrace fastapi uvicorn
headrace topic create orders --partitions 6
uvicorn fastapi_app:app          # as often as you like: the processes share the partitions
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from headrace.sdk import Consumer, Producer, json

BOOTSTRAP = os.environ.get("HEADRACE_BOOTSTRAP", "http://127.0.0.1:9420")
TOPIC = "orders"
totals: Counter[str] = Counter()


class Order(BaseModel):
    customer: str
    cents: int


async def handle(record) -> None:
    """Called for each order; those of one customer one after another, in order."""
    totals[record.key.decode()] += record.value["cents"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        Producer(BOOTSTRAP, value_serializer=json.dumps) as app.state.producer,
        Consumer(BOOTSTRAP, TOPIC, group="billing", value_deserializer=json.loads) as consumer,
    ):
        app.state.consumer = consumer
        app.state.handling = asyncio.create_task(consumer.run(handle, concurrency=4))
        yield
        app.state.handling.cancel()
        await asyncio.gather(app.state.handling, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def order(order: Order) -> dict[str, int]:
    """Answers once the order is on all in-sync replicas."""
    meta = await app.state.producer.send(TOPIC, order.model_dump(), key=order.customer.encode())
    return {"partition": meta.partition, "offset": meta.offset}


@app.get("/totals/{customer}")
async def total(customer: str) -> dict[str, int]:
    """What this process has handled of a customer."""
    return {"cents": totals[customer]}


@app.get("/healthz")
async def health() -> dict[str, object]:
    """Not well once the handling has ended: what can't pass has ended it."""
    handling = app.state.handling
    if handling.done():
        raise HTTPException(503, f"orders aren't handled any more: {handling.exception()!r}")
    return {"partitions": sorted(where.partition for where in app.state.consumer.assignment)}
