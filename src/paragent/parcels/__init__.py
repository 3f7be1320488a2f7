"""How objects travel between processes: code once, state every time, and a name for what cannot travel.

`Packer`, which takes objects apart, is in `paragent.parcels.packing`: the far side rarely needs it.
"""

from paragent.parcels.codebook import forget, learn
from paragent.parcels.parcel import Parcel, is_plain, pack, size_of, unpack

__all__ = ["Parcel", "forget", "is_plain", "learn", "pack", "size_of", "unpack"]
