"""The desk of an organiser in the process of a test."""

from __future__ import annotations

from minga.access.access_files import AccessFiles
from minga.training.organiser import Organiser
from minga.training.peer import Peer


def desk_in(peer: Peer) -> Organiser:
    """The desk at a peer that hosts a run with the organiser's own key."""
    session = peer.session
    ledger = session.admission.ledger
    assert ledger is not None
    return Organiser(peer.link, peer.spec, ledger, session.identity, AccessFiles(peer.directory), peer)
