"""Images of machines: built from packages of this host's Debian or Ubuntu, stored in the user's cache folder."""

from paragent.machines.images.store import FrozenState, Image, frozen_states, image_folder, images, remove_image

__all__ = ["FrozenState", "Image", "frozen_states", "image_folder", "images", "remove_image"]
