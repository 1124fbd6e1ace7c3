"""The organiser's orders: pause, resume, ban, amend. The page asks for confirmation before it sends one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from minga.access.standing_orders import PAUSED
from minga.core.decoding import decode_json
from minga.core.errors import ConfigurationError, MingaError
from minga.core.files import parse_value, split_setting
from minga.dashboard.server.guard import refusal
from minga.identity.access.orders import Amendment
from minga.identity.keys.keys import is_peer_id
from minga.training.organiser import LEAD_S, PAUSE_LEAD_S, Organiser

MOST_BYTES: Final = 8192
EXAMPLE: Final = "optimizer.learning_rate=0.001"

Text = Annotated[str, msgspec.Meta(max_length=300)]


class OrderRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One order. `peer` and `reason` are those of a ban, `changes` (KEY=VALUE each) those of an amendment."""

    action: Literal["pause", "resume", "ban", "amend"]
    peer: Text = ""
    reason: Text = ""
    changes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=16)] = ()


class OrderDesk:
    """Carries out orders one after the other.

    `make_desk` makes the organiser's part, None where its key is not here. `step_in` is a step that the run does not
    reach within some seconds, None where that is not known; it is asked on the server's loop.
    """

    def __init__(self, make_desk: Callable[[], Organiser] | None, step_in: Callable[[float], int | None]) -> None:
        self._make_desk, self._step_in = make_desk, step_in
        self._one_at_a_time = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """One order, as JSON; the answer says what it does."""
        if self._make_desk is None:
            return refusal(403, "this dashboard was opened without the organiser's key")
        if not request.scope.get("organiser"):
            return refusal(403, "open the address for the organiser that the dashboard's command printed")
        if request.headers.get("content-type", "").split(";")[0] != "application/json":
            return refusal(415, "an order is JSON")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return refusal(413, f"an order has at most {MOST_BYTES} bytes")
        try:
            order = decode_json(body, OrderRequest)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return refusal(400, str(error)[:200])
        try:
            async with self._one_at_a_time:
                step = self._step_in(PAUSE_LEAD_S if order.action == "pause" else LEAD_S)
                effect = await asyncio.to_thread(carry_out, order, self._make_desk, step)
        except MingaError as error:
            return refusal(409, str(error)[:300])
        return Response(msgspec.json.encode(effect), headers={"Content-Type": "application/json"})


def carry_out(order: OrderRequest, make: Callable[[], Organiser], step: int | None) -> dict[str, Any]:
    """Sign an order and spread it. A pause or an amendment is due at `step`; None leaves that to the organiser's part.

    Raises `ConfigurationError` for orders that make no sense, such as a pause of a run that is complete.
    """
    desk = make()
    if order.action == "ban":
        if not is_peer_id(order.peer):
            raise ConfigurationError("a ban names a peer id, which has 64 lower-case hexadecimal digits")
        in_force = desk.bar(order.peer, order.reason)
        return {"action": "ban", "text": f"The peer {order.peer[:10]} is banned." if in_force else _MORE}
    desk.check_goes_on()
    if order.action == "pause":
        return _put(desk, desk.amend({PAUSED: True}, desk.step_ahead(PAUSE_LEAD_S) if step is None else step), "pause")
    if order.action == "resume":
        return _put(desk, desk.amend({PAUSED: False}, 0), "resume")
    if not order.changes:
        raise ConfigurationError(f"an amendment names what changes, such as {EXAMPLE}")
    settings = dict(split_setting(text, "", EXAMPLE) for text in order.changes)
    return _put(desk, desk.amend({key: parse_value(text) for key, text in settings.items()}, step), "amend")


_MORE: Final = "More organisers have to sign; `minga amend LINK --order FILE` passes the order on to them."


def _put(desk: Organiser, order: Amendment, action: str) -> dict[str, Any]:
    order, in_force = desk.put_in_force(order)
    if not in_force:
        raise ConfigurationError(_MORE)
    when = f"from step {order.from_step} on" if order.from_step else "as soon as it reaches them"
    said = ", ".join(f"{key} = {text}" for key, text in order.changes)
    return {"action": action, "text": f"Amendment {order.number}: {said}. All members go by it {when}."}
