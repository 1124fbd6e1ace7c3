"""The authority's web server on the loopback interface: TLS, limits, and where it may listen."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import io
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import minga
from minga.authority import service
from minga.authority.app import AuthorityServer, AuthoritySettings
from minga.cli.diagnosing.hops import check_authority
from minga.cli.taking_part import login
from minga.cli.taking_part.login import PersonAtTerminal
from minga.cli.terminal.output import Output
from minga.core import web_server
from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.login.client import AuthorityClient
from minga.login.credentials import LogIn
from minga.login.messages import ByCode
from minga.training import own_access
from minga.training.own_access import keep_renewed
from minga.training.session import Session
from tests.worlds.authority_tools import CODES, HOUR_S, PEER, RUN, asynchronously, invitation_link, people
from tests.worlds.organiser_desk import desk_in


def certify(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    none = serialization.NoEncryption()
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, none)
    )
    return paths


@contextlib.asynccontextmanager
async def serving(folder: Path, **changes: Any) -> AsyncIterator[AuthorityServer]:
    server = AuthorityServer(settings(folder, **changes), lambda *_, **__: None)
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        server.close()


def settings(folder: Path, **changes: Any) -> AuthoritySettings:
    path = folder / "allow.toml"
    path.write_text(people("alice"))
    return AuthoritySettings(invitation_link(), path, folder / "roster.json", **{"port": 0, **changes})


@asynchronously
async def test_a_list_that_changes_while_nobody_asks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.authority.allow_list.SETTLE_S", 0.0)
    monkeypatch.setattr("minga.authority.app.LOOK_S", 0.01)
    async with serving(tmp_path) as server:
        async with asyncio.timeout(20.0):
            while not server._allowed.is_whole:
                await asyncio.sleep(0.01)
            (tmp_path / "allow.toml").write_text(people("alice", "bob"))
            while "bob" not in server._allowed._list.people:
                await asyncio.sleep(0.01)


@asynchronously
async def test_a_server_with_its_own_certificate(tmp_path: Path) -> None:
    certificate, key = certify(tmp_path)
    async with serving(tmp_path, certificate=certificate, key=key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.link.authority == server.url
        trusting = ssl.create_default_context(cafile=str(certificate))
        client = AuthorityClient(server.url, RUN, transport=httpx2.AsyncHTTPTransport(verify=trusting))
        answer = await client.token(PEER, ByCode("alice", CODES["alice"]))
        await client.close()
        assert isinstance(answer, tuple)


def test_the_link_names_an_address_by_which_others_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.authority.app.reachable_hosts", lambda host: ["192.0.2.7"])
    certificate, key = certify(tmp_path)
    chosen = settings(tmp_path, host="0.0.0.0", certificate=certificate, key=key)
    with contextlib.closing(AuthorityServer(chosen, lambda *_, **__: None)) as server:
        assert (server.link.authority or "").startswith("https://192.0.2.7:")


@asynchronously
async def test_a_request_that_dawdles_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BODY_S", 0.05)
    async with serving(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/token HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("has_tls", [False, True])
@asynchronously
async def test_a_connection_over_which_nothing_is_asked_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr(web_server, "LOOK_S", 0.05)
    monkeypatch.setattr(web_server, "TLS_S", 0.05)
    own = dict(zip(("certificate", "key"), certify(tmp_path), strict=True)) if has_tls else {}
    async with serving(tmp_path, **own) as server, asyncio.timeout(20.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


@asynchronously
async def test_the_doctor_asks_the_authority(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        (found,) = [hop async for hop in check_authority(server.link)]
        assert (found[:2], "codes from the organiser" in found[2]) == (("authority", True), True)
        other = Link("cd" * 32, server.link.organiser, server.link.entries, authority=server.url)
        assert [ok async for _, ok, detail, _ in check_authority(other) if "another run" in detail] == [False]
    assert [ok async for _, ok, _, _ in check_authority(server.link)] == [False]
    assert [hop async for hop in check_authority(invitation_link())] == []


@asynchronously
async def test_a_program_joins_by_the_key_that_logged_in_once_and_renews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "allow.toml").write_text(people("alice"))
    told, renewing = asyncio.Queue[tuple[Any, Any]](), list[str]()

    def tell(kind: str, **fields: Any) -> None:
        if kind == "authority.issued":
            told.put_nowait((fields["peer"], fields["renewed"]))

    async def renew(session: Session, log_in: LogIn) -> None:
        renewing.append(session.peer_id)
        await keep_renewed(session, log_in)

    monkeypatch.setattr(own_access, "LEFT_OF_LIFE", 1.0)  # the next token is due at once
    monkeypatch.setattr(own_access, "keep_renewed", renew)

    def options(name: str, **more: Any) -> minga.PeerOptions:
        files = {} if more else {"identity": tmp_path / f"{name}.json"}
        return minga.PeerOptions(host="127.0.0.1", directory=tmp_path / name, **files, **more)

    def join(chosen: minga.PeerOptions, person: minga.Credentials | None = None) -> minga.Peer:
        return minga.join(server.link, chosen, person)

    spec = {"name": "kept", "model": {"recipe": "custom"}, "security": {"admission": "members"}}
    with contextlib.ExitStack() as held:
        host = held.enter_context(minga.host(minga.RunSpec.from_mapping(spec), options("host")))
        invitation = desk_in(host).invite(9, HOUR_S)
        chosen = AuthoritySettings(invitation, tmp_path / "allow.toml", tmp_path / "roster.json", port=0)
        server = held.enter_context(contextlib.closing(AuthorityServer(chosen, tell)))
        running = asyncio.create_task(server.run())
        with pytest.raises(ConfigurationError, match="no name was given"):
            await asyncio.to_thread(join, options("guest"))
        alice = minga.Credentials("alice", CODES["alice"])
        with await asyncio.to_thread(join, options("guest"), alice) as first:
            me = first.peer_id
            assert [await told.get(), await told.get()] == [(me, False), (me, True)]
        with await asyncio.to_thread(join, options("guest")):
            assert renewing == [me, me]
        watching = options("guest", role="monitor", ephemeral=True, voucher=tmp_path / "guest.json")
        with await asyncio.to_thread(join, watching) as monitor:  # its word is that of a key which is known
            assert (monitor.spec.name, renewing) == ("kept", [me, me])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_where_an_authority_may_not_be(tmp_path: Path) -> None:
    for changes in ({"host": "0.0.0.0"}, {"url": "http://authority.example"}):
        with pytest.raises(ConfigurationError, match="--cert and --key"):
            AuthorityServer(settings(tmp_path, **changes), lambda *_, **__: None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError, match="--listen"):
        AuthorityServer(settings(tmp_path, port=taken.getsockname()[1]), lambda *_, **__: None)
    for broken in (tmp_path / "missing.pem", tmp_path / "allow.toml"):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            AuthorityServer(settings(tmp_path, certificate=broken, key=broken), lambda *_, **__: None)
    server = AuthorityServer(settings(tmp_path, url="https://a.example"), lambda *_, **__: None)
    assert server.link.authority == "https://a.example"
    server.close()


def test_secrets_come_from_files_or_from_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(" abc \n")
    output = Output(json_output=False)
    assert PersonAtTerminal("alice", path, output).secret("code", "https://a.example") == "abc"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    nobody = PersonAtTerminal(None, None, output)
    with pytest.raises(ConfigurationError, match="--login"):
        nobody.name("codes")
    with pytest.raises(ConfigurationError, match="--secret FILE"):
        nobody.secret("code", "https://a.example")
    for body in (b"", b"\xff\xfe", b"x" * 1001):
        path.write_bytes(body)
        with pytest.raises(ConfigurationError, match="--secret"):
            PersonAtTerminal(None, path, output).secret("code", "https://a.example")


def test_a_secret_from_a_pipe_is_read_once_and_never_waited_for_while_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, secrets = tmp_path / "pipe", ["abc"]
    os.mkfifo(pipe)
    monkeypatch.setattr(login, "read_secret", lambda *_: secrets.pop())
    person = PersonAtTerminal("alice", pipe, Output(json_output=False))
    assert not person.is_ready("code")
    assert [person.secret("code", "https://a.example") for _ in range(2)] == ["abc"] * 2
    assert person.is_ready("code")
