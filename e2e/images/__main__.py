"""`python -m e2e.images [NAME ...] [--base BASE] [--export FOLDER]`: build images from the working tree."""

import argparse
import sys
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache

from .build import build
from .builders import choose
from .catalog import ALL, TESTED


def main() -> int:
    """Build the requested images; the exit status."""
    by_folder = {image.folder: image for image in ALL}
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description="Build images from the working tree.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(by_folder)}; default: the test images")
    parser.add_argument("--base", help="image to build on, instead of the Dockerfile's own")
    parser.add_argument("--kept", type=Path, default=cache() / "archives", help="folder of builds")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write each image as an archive into this folder")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.names) - set(by_folder)):
        parser.error(f"no image {', '.join(unknown)}; there are {', '.join(by_folder)}")
    images = [by_folder[name] for name in chosen.names] or list(TESTED)
    try:
        builder = choose(chosen.kept / "buildah", print)
        for image in images:
            built = build(image, builder, chosen.kept, print, chosen.base)
            print(built.name)
            if chosen.export:
                chosen.export.mkdir(parents=True, exist_ok=True)
                builder.export(built.name, chosen.export / f"{image.folder}.tar")
                print(chosen.export / f"{image.folder}.tar")
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
