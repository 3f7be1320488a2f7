"""Images that machines start from: built from the packages of this machine's own Debian, kept in the user's cache."""

from paragent.machines.images.store import FrozenState, Image, frozen_states, image_folder, images, remove_image

__all__ = ["FrozenState", "Image", "frozen_states", "image_folder", "images", "remove_image"]
