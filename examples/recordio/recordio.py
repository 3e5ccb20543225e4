import struct
from typing import BinaryIO

from launcher.config.schema import Columns
from launcher.data.sources.formats import Listing
from launcher.data.sources.shards import ArchiveFormat
from launcher.errors import UserError

_HEAD, _MAGIC = struct.Struct("<IIIfQQ"), 0xCED7230A


class RecordIO(ArchiveFormat):
    extension = ".rec"

    def list(self, file: BinaryIO, archive: str, columns: Columns) -> Listing:
        listing, place = Listing(is_table=True), 0
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            magic, length, _, label, number, _ = _HEAD.unpack(head)
            if magic != _MAGIC:
                raise UserError(f"{archive} is damaged at byte {place:,}; write it again")
            # note: two numbers precede the record, whose length is that of the label's head and the image
            listing.add(f"{number:08d}.jpg", f"{label:g}", place + _HEAD.size, length + 8 - _HEAD.size)
            place += 8 + -(-length // 4) * 4
            file.seek(place)
        return listing
