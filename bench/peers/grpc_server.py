"""A plain gRPC server that echoes pickles; ends with the process that started it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

# Beyond 1,000 calls that no thread has taken up gRPC begins to cancel some at random, beyond 3,000 all.
options = [("grpc.server.max_pending_requests", 10_000), ("grpc.server.max_pending_requests_hard_limit", 20_000)]
server = grpc.server(ThreadPoolExecutor(8), options=options)
handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"reply": handler}),))
print(server.add_insecure_port("localhost:0"), flush=True)
server.start()
sys.stdin.read()
