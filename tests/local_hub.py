"""A server of this machine with the few requests of the Hugging Face Hub that an upload and a download make."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

from tests.data.sources.web import Server
from tests.forked import Command
from tests.runs import draw_nothing, ended

TOKEN = "hf_secretsecretsecret"
_COMMIT = "a" * 40
_LFS = (".safetensors", ".onnx", ".png")


class Hub:
    """Repositories of models in memory: their visibility, and their files; `requests` lists method and path of each.

    Their files are also those of `revisions`.
    """

    def __init__(self, address: str):
        self.address = address
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.revisions: tuple[str, ...] = ()
        self.closed_to_writes = False

    def put(self, name: str, files: dict[str, bytes], *, private: bool = False) -> None:
        self.private[name], self.files[name] = private, files

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Return the variables of a process with this Hub alone, with its cache in `home`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        own = {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        return kept | own | ({"HF_TOKEN": token} if token else {})

    def train(self, folder: Path, *words: str, token: str | None = TOKEN, code: int = 0) -> tuple[str, str]:
        """Run the command in a folder, and return its output and errors, none of which has the token."""
        environment = self.environment(folder / "hf", token)
        process = Command(["launcher", *words], folder, environment, before=(draw_nothing,))
        output, errors = ended(process, code)
        assert TOKEN not in output + errors
        if code == 2:
            assert errors.startswith("error: "), errors
            assert errors.count("\n") == 1, errors
        return output, errors


@contextmanager
def local_hub() -> Iterator[Hub]:
    server = Server(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined, no-any-return]

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in ("", TOKEN):
            return self._send(401, {"error": "Invalid credentials in Authorization header"}, "")
        writes = self.command == "POST" and not path.endswith("/validate-yaml")
        if writes and not token:
            return self._send(401, {"error": "Unauthorized"})
        if writes and self.hub.closed_to_writes:
            return self._send(403, {"error": f"Forbidden for {token}"})
        return self._route(path, bool(token))

    def _route(self, path: str, known: bool) -> None:
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            values = json.loads(self._body)
            name = f"{values['organization']}/{values['name']}"
            if name in self.hub.files:
                return self._send(409, {"error": "You already created this model repo"})
            self.hub.put(name, {}, private=values["visibility"] == "private")
            return self._send(200, {"url": f"{self.hub.address}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return self._send(200, {"errors": [], "warnings": []})
        if parts[0] == "objects":
            self.hub.objects[parts[1]] = self._body
            return self._send(200, {})
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2]).removesuffix(".git")
        if name not in self.hub.files or (self.hub.private[name] and not known):
            return self._send(404 if known else 401, {"error": "Repository not found"}, "RepoNotFound")
        if parts[0] == "api":
            return self._of_api(name, parts[4:6])
        if parts[-2:] == ["objects", "batch"]:
            return self._batch()
        return self._file(name, parts[3], "/".join(parts[4:]))

    def _of_api(self, name: str, rest: list[str]) -> None:
        files, verb, *revision = self.hub.files[name], *(rest or ["info"])
        if revision not in ([], ["main"], [_COMMIT]):
            return self._send(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        if verb in ("info", "revision"):
            siblings = [{"rfilename": file} for file in files]
            return self._send(
                200, {"id": name, "sha": _COMMIT, "private": self.hub.private[name], "siblings": siblings, "tags": []}
            )
        if verb == "tree":
            rows = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in files.items()
            ]
            return self._send(200, rows)
        if verb == "preupload":
            modes = [
                {"path": one["path"], "uploadMode": _mode(one["path"]), "shouldIgnore": False}
                for one in json.loads(self._body)["files"]
            ]
            return self._send(200, {"files": modes})
        assert verb == "commit", self.path
        for line in self._body.splitlines():
            row = json.loads(line)
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        address = f"{self.hub.address}/{name}/commit/{_COMMIT}"
        return self._send(200, {"commitUrl": address, "commitOid": _COMMIT, "success": True})

    def _batch(self) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.address}/objects/{one['oid']}"}}}
            for one in json.loads(self._body)["objects"]
        ]
        self._send(200, {"transfer": "basic", "objects": objects})

    def _file(self, name: str, revision: str, path: str) -> None:
        if revision not in ("main", _COMMIT) and revision not in self.hub.revisions:
            return self._send(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        content = self.hub.files[name].get(path)
        if content is None:
            return self._send(404, {"error": "Entry not found"}, "EntryNotFound")
        return self._send(200, content)

    def _send(self, status: int, content: Any, error: str | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", next((one for one in self.hub.revisions if one in self.path), _COMMIT))
        if error is not None:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Error-Message", content["error"])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _mode(path: str) -> str:
    return "lfs" if path.endswith(_LFS) else "regular"
