"""A local server that answers as the Hugging Face hub does: listing, resolve with a redirect to a second
server (the content network), ranges, entity tags, error headers. Faults are switched on by attributes.
"""
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # a client that leaves is what some tests are about


class Hub:
    """files: path → bytes. large: paths that are stored as LFS, that is redirected and with SHA-256."""

    def __init__(self, repo="owner/name", commit=COMMIT):
        self.repo, self.commit, self.files, self.large = repo, commit, {}, set()
        self.log = []            # (server, method, path, headers)
        self.faults = {}         # path → function(handler, server, start) → True where it has answered
        self.listing = None      # replaces the entries
        self.page = 1000
        self.token = None        # needed for everything
        self.gated = None        # needed for files
        self.ranges = True
        self.bytes_sent = 0
        self.api_faults = []     # (status, headers) given first
        self.lock = threading.Lock()
        self.hub = self.start("hub")
        self.cdn = self.start("cdn")
        self.endpoint = f"http://127.0.0.1:{self.hub.server_port}"
        self.cdn_url = f"http://127.0.0.1:{self.cdn.server_port}"

    def add(self, path, data, large=None):
        self.files[path] = data
        if large or (large is None and path.endswith((".gguf", ".safetensors"))):
            self.large.add(path)

    def start(self, name):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def do_GET(self):
                with hub.lock:
                    hub.log.append((name, "GET", self.path, dict(self.headers)))
                try:
                    hub.answer(self, name)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_HEAD = do_GET

        server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def stop(self):
        for s in (self.hub, self.cdn):
            s.shutdown()
            s.server_close()

    # ---- answers

    def reply(self, h, status, body=b"", headers=()):
        h.send_response(status)
        headers = dict(headers)
        headers.setdefault("Content-Length", str(len(body)))
        for k, v in headers.items():
            h.send_header(k, v)
        h.end_headers()
        h.wfile.write(body)

    def error(self, h, status, code="", message="", headers=()):
        self.reply(h, status, json.dumps({"error": message}).encode(),
                   {"X-Error-Code": code, "X-Error-Message": message, **dict(headers)})

    def entries(self):
        if self.listing is not None:
            return self.listing
        out = []
        for path, data in self.files.items():
            e = {"type": "file", "path": path, "size": len(data),
                 "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
            if path in self.large:
                e["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            out.append(e)
        return out + [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]

    def answer(self, h, server):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path)
        if server == "cdn":
            return self.send_file(h, server, path[len("/blob/"):])
        if self.token and h.headers.get("Authorization") != f"Bearer {self.token}":
            return self.error(h, 401, "RepoNotFound", "Repository not found")
        if path.startswith("/api/models/"):
            return self.api(h, url, path[len("/api/models/"):])
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.*)", path)
        if not m or m[1] != self.repo or m[2] != self.commit:
            return self.error(h, 404, "EntryNotFound", "Entry not found")
        if self.gated and h.headers.get("Authorization") != f"Bearer {self.gated}":
            return self.error(h, 401 if "Authorization" not in h.headers else 403, "GatedRepo",
                              "Access to model is restricted")
        self.send_file(h, server, m[3])

    def api(self, h, url, rest):
        if self.api_faults:
            status, headers = self.api_faults.pop(0)
            return self.error(h, status, "", "try later", headers)
        if rest.startswith(f"{self.repo}/revision/"):
            revision = urllib.parse.unquote(rest.split("/revision/", 1)[1])
            if revision not in ("main", "v1", "a/branch", self.commit):
                return self.error(h, 404, "RevisionNotFound", "Invalid rev id")
            return self.reply(h, 200, json.dumps({"id": self.repo, "sha": self.commit}).encode())
        if rest == f"{self.repo}/tree/{self.commit}":
            q = urllib.parse.parse_qs(url.query)
            at, all_ = int(q.get("cursor", ["0"])[0]), self.entries()
            headers = {}
            if at + self.page < len(all_):
                headers["Link"] = (f'<{self.endpoint}/api/models/{rest}?recursive=1&cursor={at + self.page}>; '
                                   f'rel="next"')
            return self.reply(h, 200, json.dumps(all_[at:at + self.page]).encode(), headers)
        self.error(h, 404, "RepoNotFound", "Repository not found")

    def send_file(self, h, server, path):
        data = self.files.get(path)
        if data is None:
            return self.error(h, 404, "EntryNotFound", "Entry not found")
        start, end, status, headers = 0, len(data), 200, {}
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers.get("Range", ""))
        etag = '"' + hashlib.md5(data).hexdigest() + '"'
        fault = self.faults.get(path)
        if fault and fault(h, server, int(m[1]) if m else 0):
            return
        if server == "hub" and path in self.large:
            return self.reply(h, 302, b"Found. Redirecting", {
                "X-Repo-Commit": self.commit, "X-Linked-Size": str(len(data)),
                "X-Linked-Etag": '"' + hashlib.sha256(data).hexdigest() + '"',
                "Location": f"{self.cdn_url}/blob/{urllib.parse.quote(path)}?sig=1"})
        if m and self.ranges and h.headers.get("If-Range", etag) == etag:
            start, end, status = int(m[1]), min(int(m[2]) + 1, len(data)), 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        headers["ETag"] = etag
        with self.lock:
            self.bytes_sent += end - start
        self.reply(h, status, data[start:end], headers)


def cut_after(hub, path, n, times=1, slow=0.0):
    """A fault: the content server breaks off n bytes into its reply, the first `times` times."""
    left = [times]

    def fault(h, server, start):
        if server != "cdn" or left[0] == 0:
            return False
        left[0] -= 1
        data = hub.files[path]
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers.get("Range", ""))
        first, last = (int(m[1]), int(m[2])) if m and hub.ranges else (0, len(data) - 1)
        h.send_response(206 if m and hub.ranges else 200)
        if m and hub.ranges:
            h.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        h.send_header("Content-Length", str(last - first + 1))
        h.send_header("ETag", '"' + hashlib.md5(data).hexdigest() + '"')
        h.end_headers()
        part = data[first:first + n]
        if slow:
            for i in range(0, len(part), 65536):
                h.wfile.write(part[i:i + 65536])
                time.sleep(slow)
        else:
            h.wfile.write(part)
        h.close_connection = True
        return True
    return fault
