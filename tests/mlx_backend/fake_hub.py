"""A model hub on the loopback interface, as far as its client asks it anything."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass
class FakeHub:
    """`files` of its only repository, `fetched` what was asked for with the first byte wanted.

    `cut_after`: a download of that file breaks off after so many bytes, once. `announced` sizes
    stand in for true ones in the listing.
    """

    repo: str
    files: Mapping[str, bytes]
    url: str = ""
    fetched: list[tuple[str, int]] = field(default_factory=list)
    cut_after: dict[str, int] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def listing(self) -> list[dict[str, Any]]:
        return [self._entry(name) for name in self.files]

    def _entry(self, name: str) -> dict[str, Any]:
        size = self.announced.get(name, len(self.files[name]))
        digest = hashlib.sha256(self.files[name]).hexdigest()
        lfs = {"oid": digest, "sha256": digest, "size": size, "pointerSize": 130}
        return {
            "type": "file",
            "path": name,
            "rfilename": name,
            "size": size,
            "oid": digest[:40],
            "blobId": digest[:40],
            **({"lfs": lfs} if name.endswith(".safetensors") else {}),
        }

    def etag(self, name: str) -> str:
        digest = hashlib.sha256(self.files[name]).hexdigest()
        return digest if name.endswith(".safetensors") else digest[:40]


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        path, hub = urlsplit(self.path).path, self.hub
        hub.requests.append(f"{self.command} {path}")
        if path.startswith(f"/api/models/{hub.repo}/tree/"):
            self._json(hub.listing())
        elif re.fullmatch(f"/api/models/{hub.repo}(/revision/.*)?", path):
            self._json({"id": hub.repo, "sha": COMMIT, "siblings": hub.listing()})
        elif path.startswith(f"/{hub.repo}/resolve/"):
            self._file(path.split("/", 5)[5])
        else:
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _json(self, value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **headers}.items():
            self.send_header(name, text)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _file(self, name: str) -> None:
        content = self.hub.files[name]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        start = int(wanted[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("etag", f'"{self.hub.etag(name)}"')
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("accept-ranges", "bytes")
        if wanted:
            self.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("content-length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.fetched.append((name, start))
        end = self.hub.cut_after.pop(name, len(content))
        self.wfile.write(content[start:end])
        if end < len(content):
            self.close_connection = True


@contextmanager
def serving(repo: str, files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    hub = FakeHub(repo, files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
