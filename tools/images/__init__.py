"""Container images of Lastmile, built from images/*/Dockerfile without a registry or an engine.

`make images` builds them, `build_image("runtime")` is the same for tests: a name, and what writes
an archive that containerd imports. Everything lies in ~/.cache/lastmile/images, shared by all
checkouts.
"""

from tools.images.build import NAMES, Image, build_image
from tools.images.buildah import missing_for_images

__all__ = ["NAMES", "Image", "build_image", "missing_for_images"]
