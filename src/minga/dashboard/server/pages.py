"""The files of the pages: HTML, style, scripts and the vendored uPlot, read once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from minga.dashboard.server.guard import refusal

FOLDER: Final = Path(__file__).parent.parent / "static"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGES: Final = ("/", "/peers", "/peers/{peer}", "/leaderboard")
"""The addresses of pages; all are one file, whose scripts look at the address."""


@dataclass(frozen=True)
class _File:
    data: bytes
    type: str
    etag: str


class Pages:
    """Answers requests for files; only files that were there at the start are served."""

    def __init__(self, folder: Path = FOLDER) -> None:
        found = (path for path in folder.rglob("*") if path.is_file() and path.suffix in TYPES)
        self._files = {path.relative_to(folder).as_posix(): _read(path) for path in found}

    async def page(self, request: Request) -> Response:
        """The page, whichever its address is."""
        return self._answer(request, "index.html")

    async def file(self, request: Request) -> Response:
        """A file that the page loads."""
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return refusal(404, "no such file")
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers={**headers, "Content-Type": file.type})


def _read(path: Path) -> _File:
    data = path.read_bytes()
    return _File(data, TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:20]}"')
