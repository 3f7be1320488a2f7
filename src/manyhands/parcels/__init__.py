"""How objects travel between processes: code once, state every time, and a name for what cannot travel."""

from manyhands.parcels.codebook import known_code, learn
from manyhands.parcels.packing import Packer, Parcel, is_plain, pack, unpack

__all__ = ["Packer", "Parcel", "is_plain", "known_code", "learn", "pack", "unpack"]
