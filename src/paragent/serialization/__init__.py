"""Serialization: objects to bytes and back. Code is sent once, state every time; errors name the part that cannot be sent.

`Packer`, which packs any object, is in `paragent.serialization.packing`, because workers rarely need it.
"""

from paragent.serialization.code_cache import add_code, drop_code
from paragent.serialization.payload import Payload, is_plain, pack, size_of, unpack

__all__ = ["Payload", "add_code", "drop_code", "is_plain", "pack", "size_of", "unpack"]
