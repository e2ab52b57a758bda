"""OpenAI-compatible servers over an engine, on a free port of this machine, for the time of a `with`."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from draftproof import SamplingParams

KNOWN = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed"}


@contextmanager
def serving(engine, *, ids=True, strict=False, text_only=False, broken=None):
    """The URL of a server.

    ids: give token ids where they are asked for. strict: refuse fields that OpenAI does not know. text_only: refuse
    prompts of ids. broken: answer completions with this instead.
    """
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.reply(200, {"data": [{"id": "tiny"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            if broken is not None:
                return self.reply(*broken)
            if strict and set(body) - KNOWN:
                return self.reply(400, {"error": f"unknown {sorted(set(body) - KNOWN)}"})
            if text_only and not isinstance(body["prompt"], str):
                return self.reply(422, {"error": "prompt must be text"})
            fields = {key: body[key] for key in ("temperature", "top_p", "top_k", "seed") if key in body}
            params = SamplingParams(max_new_tokens=body["max_tokens"], **fields)
            result = engine.generate([body["prompt"]], params)[0]
            choice = {"text": result.text, "finish_reason": result.finish_reason}
            if ids and body.get("return_token_ids"):
                choice["token_ids"] = result.token_ids
            return self.reply(200, {"choices": [choice]})

        def reply(self, status, content):
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Served(str):
    """The URL, and the bodies of what was asked there."""

    def __new__(cls, url, requests):
        made = super().__new__(cls, url)
        made.requests = requests
        return made
