"""Getting a value from another server, on behalf of a call that needs it as an argument."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.remote.client.links import link_to
from paragent.remote.client.result import ENCODED, FAILED, RAISED
from paragent.remote.faults import encode_error
from paragent.remote.wire import ERROR, RESULT
from paragent.rpc.address import Address
from paragent.rpc.tls import TlsConf

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy

__all__ = ["fetch_from"]


def fetch_from(reference: tuple[Any, ...], policy: Policy, then: Callable[[str, Any], None]) -> None:
    """Ask another server for a result; `then` is called with its outcome, or with the error of not reaching it.

    The address is a client's word, and nothing that comes from there is decoded here. A server that accepts no code asks for
    data, in frames of data, over a link of its own.
    """
    _, address, session, number, tls = reference
    data_only = not policy.accept_code
    link = link_to(Address(*address), _tls(tls, policy), data_only=data_only)
    result = link.fetch(session, number)

    def arrived() -> None:
        state, value = result._state, result._value
        if state == ENCODED:
            then(RESULT, value)
        elif state == FAILED and not data_only:
            then(ERROR, value)
        elif state == FAILED:
            from paragent.remote.restricted import error_from  # not at the top: few servers need it

            then(ERROR, encode_error(error_from(value)))
        else:
            error = (
                value if state == RAISED else ProtocolError(f"{link.place.address} kept a result that was asked for")
            )
            then(ERROR, encode_error(error))

    if not result._watch(arrived):
        arrived()


def _tls(given: tuple[str | None, ...] | None, policy: Policy) -> TlsConf | None:
    """Return how to connect to a server of which a client says how it connects there itself; None: without TLS.

    The files that a client names are its own. They are used where there are none of this server's, by a server that runs the
    client's code anyway: a child process of the client's program.
    """
    if given is None:
        return None
    ca, cert, key, server_name = given
    conf = policy.peer_tls
    if conf is None:
        conf = TlsConf(ca=ca, cert=cert, key=key) if policy.accept_code else TlsConf()
    return replace(conf, server_name=server_name or conf.server_name)
