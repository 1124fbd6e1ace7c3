"""The plans that need no planner, to compare with: equal parts for all, and one server for everybody."""

from __future__ import annotations

from dataclasses import replace

from minga.averaging.solver.division import Division, PartShare, SwarmRates
from minga.averaging.solver.flat import predict


def equal_parts(rates: SwarmRates) -> Division:
    """Every peer that aggregates reduces as much as the others, as in an ordinary all-reduce.

    Auxiliaries, which have no gradients, are left out unless nobody else can be reached.
    """
    able = [index for index, peer in enumerate(rates.peers) if peer.aggregates]
    roots = [index for index in able if rates.peers[index].sends] or able
    return Division(tuple(PartShare(1.0 / len(roots), root) for root in roots))


def divide_equally(rates: SwarmRates, vector_bytes: float) -> Division:
    """Equal parts, with the time that they are expected to take, in place of the planner's `divide`."""
    division = equal_parts(rates)
    return replace(division, predicted_s=predict(division, rates, vector_bytes).seconds)


def parameter_server(rates: SwarmRates, vector_bytes: float) -> Division:
    """One peer reduces everything: that which does it fastest."""
    able = [index for index, peer in enumerate(rates.peers) if peer.aggregates]
    servers = [Division((PartShare(1.0, index),)) for index in able]
    return min(servers, key=lambda server: predict(server, rates, vector_bytes).seconds)
