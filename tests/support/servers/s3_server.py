"""A real S3 server on this machine: its keys, its buckets, and the files in them."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyarrow import fs as pafs


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running S3 server.

    Attributes:
        endpoint: URL with scheme and port, no path.
        access_key: of the server's only account, which may do everything.
        secret_key: of that account.
    """

    endpoint: str
    access_key: str
    secret_key: str

    @property
    def env(self) -> dict[str, str]:
        """The environment in which a process uses this server and no other."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @contextmanager
    def bucket(self, name: str) -> Iterator[pafs.S3FileSystem]:
        """Make a bucket for the time of a context, and return the filesystem of all buckets."""
        s3 = pafs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )
        s3.create_dir(name)
        try:
            yield s3
        finally:
            for _ in range(5):
                # A server that keeps objects as files refuses to delete a folder before its
                # content, and one request names both in any order.
                with contextlib.suppress(OSError):
                    s3.delete_dir(name)
                    break
            else:
                s3.delete_dir(name)


def files_below(s3: pafs.S3FileSystem, folder: str) -> set[str]:
    """Return the paths of all files below a folder, which need not exist."""
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    return {info.path for info in s3.get_file_info(selector) if info.type == pafs.FileType.File}
