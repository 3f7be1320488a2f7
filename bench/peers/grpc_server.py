"""A server of bare gRPC that echoes pickles; ends with the process that started it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

server = grpc.server(ThreadPoolExecutor(8))
handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"reply": handler}),))
print(server.add_insecure_port("localhost:0"), flush=True)
server.start()
sys.stdin.read()
