"""A small server that speaks the Hugging Face hub's API on this machine, for huggingface_hub.

Its answers follow the hub's: the headers X-Repo-Commit, ETag, X-Linked-Etag, X-Linked-Size and
X-Error-Code, weights behind a redirection, ranges, 401 for what an anonymous visitor may not know.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["HubServer", "Repo", "commit", "files_of"]


def commit(number: int) -> str:
    """A hash of a commit, 40 hexadecimal digits."""
    return hashlib.sha1(str(number).encode()).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder by name."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@dataclass
class Repo:
    """A repository: files by commit, commits by branch.

    Attributes:
        token: the one that may read it, when it is private or gated.
        status: answered instead of anything else.
    """

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    gated: bool = False
    private: bool = False
    token: str | None = None
    status: int | None = None

    @classmethod
    def of(cls, files: dict[str, bytes], **options: object) -> Repo:
        """A repository with one commit on the branch main."""
        return cls({commit(1): files}, {"main": commit(1)}, **options)


@dataclass
class HubServer:
    """Serves ``repos`` while it is entered.

    Attributes:
        repos: by ``org/name``.
        requests: ``METHOD path`` of each request so far.
        sent: names of the files whose bytes were sent, at least in part.
        stall: names of files of which half is sent, and the rest after ``go`` is set.
        stalled: set once such a file waits.
        cut: names of files whose next transfer ends after half of the bytes; taken out then.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    stall: set[str] = field(default_factory=set)
    stalled: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    cut: set[str] = field(default_factory=set)

    def __enter__(self) -> HubServer:
        hub = self

        class Handler(_Handler):
            server_of_files = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fetched(self) -> list[str]:
        """Names of the files whose bytes were sent, in order; the list starts anew."""
        names, self.sent = self.sent, []
        return names


class _Handler(BaseHTTPRequestHandler):
    """The answers; one thread a connection."""

    server_of_files: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server_of_files.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[0] == "bytes":  # where the weights are, behind a redirection
            repo = self.server_of_files.repos["/".join(parts[1:3])]
            return self._send_file("/".join(parts[4:]), repo.commits[parts[3]])
        is_api = parts[:2] == ["api", "models"]
        parts = parts[2:] if is_api else parts
        name = "/".join(parts[:2])
        repo = self.server_of_files.repos.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        may_read = repo is not None and repo.token in (None, token)
        if repo is None or (repo.private and not may_read):
            # The hub does not tell an anonymous visitor what is private and what does not exist.
            return self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        revision, file = "main", ""
        if len(parts) > 3:
            revision, file = parts[3], "/".join(parts[4:])
        if repo.status:
            return self._send(repo.status, b"", {})
        sha = repo.branches.get(revision, revision)
        if sha not in repo.commits:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repo.commits[sha]
        if is_api:
            siblings = [{"rfilename": each} for each in files]
            return self._send_json({
                "id": name, "modelId": name, "sha": sha, "siblings": siblings, "tags": [],
                "private": repo.private, "gated": "manual" if repo.gated else False,
            })  # fmt: skip
        if repo.gated and not may_read:
            status = 403 if token else 401
            return self._refuse(status, "GatedRepo", f"Access to {name} is restricted")
        if file not in files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": sha, "X-Linked-Size": str(len(files[file]))}
        if file.endswith(".safetensors"):
            etag = hashlib.sha256(files[file]).hexdigest()
            # The hub redirects to another host, which gets no token and does not know commits.
            other = self.server_of_files.url.replace("127.0.0.1", "localhost")
            headers |= {"X-Linked-Etag": f'"{etag}"',
                        "Location": f"{other}/bytes/{name}/{sha}/{file}"}  # fmt: skip
            return self._send(302, b"", headers)
        headers["ETag"] = f'"{hashlib.sha1(files[file]).hexdigest()}"'
        self._send_file(file, files, headers)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, files: dict, headers: dict[str, str] | None = None) -> None:
        data, status = files[name], 200
        headers = {"Accept-Ranges": "bytes", **(headers or {})}
        asked = self.headers.get("Range", "")
        if asked:
            first = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
            data, status = data[first:], 206
        self._send(status, data, headers, name)

    def _send(self, status: int, data: bytes, headers: dict[str, str], name: str = "") -> None:
        hub = self.server_of_files
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if name:
            hub.sent.append(name)
        if name in hub.cut:
            hub.cut.discard(name)
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        if name in hub.stall and not hub.go.is_set():
            self.wfile.write(data[: len(data) // 2])
            hub.stalled.set()
            hub.go.wait(60)
            data = data[len(data) // 2 :]
        try:
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):  # the program was interrupted
            self.close_connection = True
