"""Mistakes with agent servers: addresses, tokens, TLS and modules."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.surroundings import agent_server, busy_port, free_port, pool, web_server

_AGENTS = "paragent agents --host 127.0.0.1 --port <port>"
_PEM = "-----BEGIN CERTIFICATE-----\nnot a certificate\n-----END CERTIFICATE-----\n"

MISTAKES = (
    Mistake(
        title="an agent server that does not run",
        command=_AGENTS,
        given=free_port,
        status=1,
        waits=True,
        says=(
            "no agent server answers at 127.0.0.1:",
            "start one there with: paragent agent-server --host 127.0.0.1 --port",
            "(connection refused)",
        ),
    ),
    Mistake(
        title="a server on this host that was started in another folder",
        program=(
            "from team import Member\n\nmember = Member('m', to_dist={'host': '127.0.0.1', 'port': <port>})\n"
            "print(member.reply('hello').content)\n"
        ),
        files={"team.py": "from paragent import AgentBase\n\n\nclass Member(AgentBase):\n    pass\n"},
        given=agent_server(),
        status=1,
        says=(
            "ModuleNotFoundError: No module named 'team' on the agent server at 127.0.0.1:",
            "which runs in the folder",
            "start it in the folder of your program, or with that folder in PYTHONPATH, or write the name of its host instead of",
        ),
    ),
    Mistake(
        title="a port that does not exist",
        command="paragent agents --port 123456",
        says=("port must be a number between 0 and 65535, not 123456",),
    ),
    Mistake(
        title="another token than the server",
        command=_AGENTS,
        given=agent_server(),
        variables={"PARAGENT_TOKEN": "the-token-of-somebody-else"},
        says=("the server has a different token; give both sides the same one in PARAGENT_TOKEN",),
    ),
    Mistake(
        title="a short token",
        command=_AGENTS,
        given=free_port,
        variables={"PARAGENT_TOKEN": "secret"},
        says=("a token must have at least 16 characters; make one with: python3 -c",),
    ),
    Mistake(
        title="another kind of server",
        command=_AGENTS,
        given=web_server(200),
        status=1,
        says=("this is not a server of paragent; check the port",),
    ),
    Mistake(
        title="a pool instead of an agent server",
        command=_AGENTS,
        given=pool,
        status=1,
        says=("this server has no service 'agents', it has 'pool'; check the port",),
    ),
    Mistake(
        title="no TLS settings for a server with TLS",
        command=_AGENTS,
        given=agent_server(tls=True),
        status=1,
        waits=True,
        says=(
            "closes connections without TLS: if it uses TLS, connect with to_dist(tls=TlsConf(ca=...)) or --tls-ca FILE; if",
        ),
    ),
    Mistake(
        title="the wrong authority for a server with TLS",
        command=f"{_AGENTS} --tls-server-name localhost --tls-cert cert.pem --tls-key key.pem",
        given=agent_server(tls=True),
        says=(
            "no known authority signed its certificate; name its file: client: TlsConf(ca=...), --tls-ca; agent server: --peer",
        ),
    ),
    Mistake(
        title="TLS settings for a server without TLS",
        command=f"{_AGENTS} --tls-server-name localhost",
        given=agent_server(),
        says=("it does not use TLS; connect without TLS settings",),
    ),
    Mistake(
        title="a certificate for another name",
        command=f"{_AGENTS} --tls-ca cert.pem --tls-server-name example.org",
        given=agent_server(tls=True),
        says=(
            "its certificate is for another host name; set this name with --tls-server-name or TlsConf(server_name=...)",
        ),
    ),
    Mistake(
        title="a TLS file that does not exist",
        command="paragent agent-server --tls-cert cert.pem --tls-key key.pem",
        says=("TLS: key='key.pem' cannot be read: No such file or directory; correct the path",),
    ),
    Mistake(
        title="a TLS file that is not a certificate",
        command="paragent agent-server --tls-cert cert.pem --tls-key key.pem",
        files={"cert.pem": _PEM, "key.pem": _PEM},
        says=("TLS: cert='cert.pem' and key='key.pem' must be PEM files with a certificate and its private key",),
    ),
    Mistake(
        title="an authority that is not a certificate",
        command="paragent agents --tls-ca ca.pem",
        files={"ca.pem": _PEM},
        says=("TLS: ca='ca.pem' must be a PEM file with the certificate of an authority",),
    ),
    Mistake(
        title="a certificate without its key",
        command="paragent agent-server --tls-cert cert.pem",
        files={"cert.pem": _PEM},
        says=("TLS needs both cert= and key= (--tls-cert and --tls-key), or neither",),
    ),
    Mistake(
        title="a port that another program uses",
        command="paragent agent-server --host 127.0.0.1 --port <port>",
        given=busy_port,
        says=(
            "cannot listen at 127.0.0.1:",
            "the port is in use; choose another port, or stop the program that uses it",
        ),
    ),
    Mistake(
        title="a host that is another one",
        command="paragent agent-server --host 192.0.2.1",
        says=("cannot listen at 192.0.2.1:12345: this is not an address of this host; use one of its addresses",),
    ),
    Mistake(
        title="--module that does not exist",
        command="paragent agent-server --module my_agents",
        says=("--module my_agents: there is no module 'my_agents' in the current folder, in PYTHONPATH or among",),
    ),
    Mistake(
        title="--module with a file",
        command="paragent agent-server --module my_agents.py",
        files={"my_agents.py": "from paragent import AgentBase\n"},
        says=("--module my_agents.py: write the name of the module without .py, as in my_agents",),
    ),
    Mistake(
        title="--module without agents",
        command="paragent agent-server --module my_agents",
        files={"my_agents.py": "def answer(x):\n    return x\n"},
        says=("--module my_agents: the module defines no agent class (subclass of AgentBase)",),
    ),
)
