"""A small inference server for train_served.py: it samples completions with the newest weights that it was sent.

    python serve_policy.py 8000

GET /health answers once it serves. POST /generate takes prompts and answers with completions, POST /weights takes a
policy as torch.save writes it. It stands where vLLM or SGLang would, and needs torch alone.
"""

import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from train_grpo import Policy, generate

WIDTH = 64
policy = Policy(WIDTH)
chance = torch.Generator().manual_seed(0)
lock = threading.Lock()  # one answer at a time, with one set of weights


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(b"ready")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            if self.path == "/weights":
                policy.load_state_dict(torch.load(io.BytesIO(body), weights_only=True))
                self.answer(b"taken")
            else:
                prompts = torch.tensor(json.loads(body))
                self.answer(json.dumps(generate(policy, prompts, chance).tolist()).encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Nothing: a line a request would hide the rest."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    port = int(sys.argv[1])
    server = ThreadingHTTPServer(("", port), Handler)
    print(f"serving on port {port}", flush=True)
    server.serve_forever()
