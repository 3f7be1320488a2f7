"""How objects travel between processes: code once, state every time, and a name for what cannot travel.

`Packer`, which takes objects apart, is in `paragent.serialization.payload`: the far side rarely needs it.
"""

from paragent.serialization.code_cache import forget, learn
from paragent.serialization.payload import Parcel, is_plain, pack, size_of, unpack

__all__ = ["Parcel", "forget", "is_plain", "learn", "pack", "size_of", "unpack"]
