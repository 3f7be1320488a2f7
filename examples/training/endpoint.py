"""The endpoint of the policy: chat completions with token ids and log probabilities, in the form of vLLM.

It is started with a folder and a port. At the start and at `POST /load`, it reads `policy.npz` in that folder. Requests need the
key in the environment variable POLICY_KEY.
"""

import hmac
import os
import sys
from pathlib import Path

import numpy as np
from aiohttp import web
from policy import END, VOCABULARY, Policy, message_of, render


class Endpoint:
    """Serves one version of the policy at a time."""

    def __init__(self, folder, key):
        self.file = Path(folder) / "policy.npz"
        self.key = key
        self.policy = Policy.load(self.file)
        self.random = np.random.default_rng()

    @web.middleware
    async def check_key(self, request, handler):
        """Reject requests without the key."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            raise web.HTTPUnauthorized
        return await handler(request)

    async def load(self, request):
        """Read the weights again and return their version."""
        self.policy = Policy.load(self.file)
        return web.json_response({"version": self.policy.version})

    async def complete(self, request):
        """Sample one reply."""
        body = await request.json()
        prompt = render(body["messages"])
        reply, logprobs = self.policy.sample(prompt, self.random)
        choice = {
            "index": 0,
            "message": message_of(prompt, reply),
            "finish_reason": "stop" if reply[-1] == END else "length",
        }
        answer = {
            "id": f"policy-{self.policy.version}",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(reply)},
        }
        if body.get("return_token_ids"):
            answer["prompt_token_ids"] = prompt
            choice["token_ids"] = reply
        if body.get("logprobs"):
            content = [
                {"token": VOCABULARY[token], "logprob": logprob} for token, logprob in zip(reply, logprobs, strict=True)
            ]
            choice["logprobs"] = {"content": content}
        return web.json_response(answer)


if __name__ == "__main__":
    endpoint = Endpoint(sys.argv[1], os.environ["POLICY_KEY"])
    app = web.Application(middlewares=[endpoint.check_key])
    app.add_routes([web.post("/v1/chat/completions", endpoint.complete), web.post("/load", endpoint.load)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), print=None)
