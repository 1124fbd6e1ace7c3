"""The process of one peer of `benchmarks.links`: in its namespace, it averages when told to and says how it went."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from typing import Any

import blake3
import torch

from benchmarks._allreduce_peer import vector_of
from benchmarks._entering import enter, tell_address
from benchmarks._links_averager import Averager, Company, crowded, describe
from benchmarks._worker import Channel
from minga.averaging.codecs.layout import VectorLayout
from minga.network.iroh.network import NetworkSettings
from minga.network.rpc.handshake import Role
from minga.training.session import SessionSettings
from tests import netlab


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer."""
    netlab.enter(settings["namespace"])  # before anything opens a socket or starts a thread that does
    torch.set_num_threads(1)
    with crowded():
        asyncio.run(_peer_or_end(channel, settings))


async def _peer_or_end(channel: Channel, settings: dict[str, Any]) -> None:
    try:
        await _peer(channel, settings)
    except Exception:  # a loop that ends waits for its threads, of which one waits for a command
        traceback.print_exc()
        os._exit(1)


async def _peer(channel: Channel, settings: dict[str, Any]) -> None:
    role: Role = "auxiliary" if settings["auxiliary"] else "trainer"
    network = NetworkSettings(host=settings["host"])
    session, identity = await enter(settings["entries"], network, SessionSettings(role=role))
    vector = torch.from_numpy(vector_of(settings["seed"], settings["index"], settings["numel"]))
    company = Company(settings["count"], settings["trainers"], computes=not settings["auxiliary"])
    me = Averager(session, identity, vector, VectorLayout((vector.numel(),), "float32"), company)
    tell_address(channel, session)
    await me.meet_all()
    await me.probe_line()
    channel.send(met=True)
    while (command := await channel.receive_on_loop())["do"] != "exit":
        if command["do"] == "settle":
            await me.settle()
            channel.send(settled=True, **me.known())
        elif command["do"] == "round":
            me.kind, me.server = command["kind"], command["server"]
            plan = await me.form()
            channel.send(planned_s=time.monotonic(), **describe(plan))
            await channel.receive_on_loop()
            failures = await me.reduce(plan)
            done_s = time.monotonic()
            digest = blake3.blake3(me.result.numpy().data.cast("B")).hexdigest()
            channel.send(done_s=done_s, failures=failures, digest=digest)
    await session.close()
