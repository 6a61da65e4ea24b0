"""A Hugging Face Hub of your own: the few addresses that streaming a dataset asks, over files held in memory."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories by name, each files by path.

    withheld: the files, each with its repository, that it does not give, with an error that clients do not try again.
    """

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = dict(repositories)
        self.withheld: set[tuple[str, str]] = set()

    def answer(self, method: str, url: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Status, content and headers; of a file its whole content."""
        path = PurePosixPath(unquote(urlsplit(url).path)).parts[1:]
        api, path = path[:1] == ("api",), path[1:] if path[:1] == ("api",) else path
        repository, rest = "/".join(path[1:3]), path[3:]
        files = self.repositories.get(repository)
        if path[:1] != ("datasets",) or files is None:
            return 404, b"", {"X-Error-Code": "RepoNotFound"}
        if not api:
            name = "/".join(rest[2:])
            if (repository, name) in self.withheld:
                return 403, b"", {}
            if name not in files:
                return 404, b"", {"X-Error-Code": "EntryNotFound"}
            return 200, files[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
        if rest and rest[0] == "tree":
            return _as_json(_listing(files, "/".join(rest[2:])))
        if rest and rest[0] == "paths-info":
            return _as_json([_file(files, name) for name in parse_qs(body.decode())["paths"] if name in files])
        siblings = [{"rfilename": name} for name in files]
        about = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        return _as_json({"id": repository, "sha": COMMIT, "siblings": siblings, **about})


def _as_json(content: Any) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(content).encode(), {"Content-Type": "application/json"}


def _file(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(files[name]), "oid": COMMIT}


def _listing(files: Mapping[str, bytes], folder: str) -> list[dict[str, Any]]:
    """The files and folders right in `folder`."""
    start = f"{folder}/" if folder else ""
    inside = [name.removeprefix(start) for name in files if name.startswith(start)]
    folders = sorted({name.partition("/")[0] for name in inside if "/" in name})
    return [
        *({"type": "directory", "path": start + name, "oid": COMMIT} for name in folders),
        *(_file(files, start + name) for name in inside if "/" not in name),
    ]


@contextlib.contextmanager
def serve(hub: Hub) -> Iterator[str]:
    """Yields the address at which it answers."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content, headers = hub.answer(self.command, self.path, body)
            first, last = 0, len(content) - 1
            if status == 200 and (asked := self.headers.get("Range")):
                begin, _, end = asked.removeprefix("bytes=").partition("-")
                status, first, last = 206, int(begin), min(int(end or last), last)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            part = content[first : last + 1]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(part)), "Accept-Ranges": "bytes", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(part)

        do_GET = do_HEAD = do_POST = respond

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
