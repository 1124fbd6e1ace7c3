"""Plain UDP probes, which tell a firewall from a program that is not there."""

from __future__ import annotations

import socket

TIMEOUT_S = 1.0


def udp_loopback() -> str | None:
    """Send a datagram to oneself; what went wrong, or None."""
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("127.0.0.1", 0))
            receiver.settimeout(TIMEOUT_S)
            sender.sendto(b"minga", receiver.getsockname())
            received = receiver.recv(16)
    except TimeoutError:
        return "a datagram over loopback did not arrive"
    except OSError as error:
        return f"no UDP socket can be used: {error.strerror or error}"
    return None if received == b"minga" else "a datagram over loopback arrived changed"


def probe(endpoint: str) -> tuple[str, str]:
    """What lies at an `ip:port` that did not answer, and what to do: (detail, advice).

    A machine that is up but has nobody at the port usually says so; a firewall or a machine that is off says nothing.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]").split("%")[0]
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect((host, int(port)))
            sock.send(b"minga")
            sock.recv(16)
    except ConnectionError:
        return "the machine is there, but nothing listens at this port", (
            "the peer has stopped or uses another port now: ask the organiser for a fresh link"
        )
    except TimeoutError:
        return "packets vanish on the way", (
            "the machine is off, or a firewall drops UDP: try from another network, or ask the organiser for a run "
            "with relays"
        )
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"no way there from this machine ({why})", "check the network connection of this machine"
    return "something other than this peer answers there", "ask the organiser for a fresh link"
