"""Which kind of source a data set's path is; imports no torch."""

from __future__ import annotations

from pathlib import Path

from launcher.data.folder import TAR, is_folder, is_remote, scan
from launcher.data.sources.imagenet import ARCHIVES, imagenet_source
from launcher.data.sources.local import LocalFiles, folder_source
from launcher.data.sources.remote import RemoteFiles, remote_folders
from launcher.data.sources.source import Report, Source, Storage, below, problem
from launcher.data.sources.tar import class_folders


def open_source(path: str, split: str, report: Report) -> Source:
    """The pictures of a split: in class folders, in a tar file of them, or in ImageNet's; of this machine or a URL.

    Raises:
        UserError: there are none, or they cannot be listed.
    """
    storage: Storage = RemoteFiles(path) if is_remote(path) else LocalFiles()
    if path.endswith(TAR):
        if not storage.holds(path):
            raise problem(path, "is no file; give a tar file of class folders, or a folder")
        return class_folders(storage, path, split, report)
    if not is_remote(path) and is_folder(Path(path) / split):
        return folder_source(scan(Path(path), split))
    if storage.holds(below(path, ARCHIVES[split])):
        return imagenet_source(storage, path, split, report)
    if is_remote(path):
        return remote_folders(path, split, report)
    if is_folder(Path(path)):
        raise problem(path, f"holds neither a {split}/ folder of class folders nor {ARCHIVES[split]}")
    return folder_source(scan(Path(path), split))
