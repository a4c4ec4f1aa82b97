"""`make images`."""

import argparse
import sys
from pathlib import Path

from tools.go_tools import ToolError
from tools.images import NAMES, Image, build_image


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.images", description="Build the images.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{' or '.join(NAMES)}; both")
    parser.add_argument(
        "--archives", type=Path, metavar="FOLDER", help="write each there as an OCI archive"
    )
    arguments = parser.parse_args()
    names = arguments.names
    unknown = sorted({*names} - {*NAMES})
    if unknown:
        parser.error(f"NAME must be {' or '.join(NAMES)}, got {unknown[0]!r}")
    try:
        for name in names or NAMES:
            image = build_image(name)
            print(f"{image.reference}  {image.size_bytes / 1e6:,.0f} MB")
            if arguments.archives:
                _write(image, arguments.archives / f"lastmile-{name}.tar")
    except ToolError as error:
        print(f"images: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _write(image: Image, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(".partial")  # never a half-written archive
    with partial.open("wb") as stream:
        image.write_archive(stream)
    partial.rename(archive)
    print(archive)


if __name__ == "__main__":
    main()
