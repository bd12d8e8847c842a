"""The verifier: a server's or a replica's file, recomputed from its bytes.

It reads closed (or open) files and takes nothing on trust: hashes, numbers, settling, materialised
rows and the ledger are worked out again, by code written from the formats alone. It shares nothing
with the code that wrote the files: it imports the standard library and msgpack, and an import
contract holds that. So a bug in the one is not a blind spot of the other.
"""

from ._anchor import Anchor, check_anchors, read_anchors, take_anchor
from ._compare import compare_files
from ._report import Report, SessionReport
from ._verify import verify_file

__all__ = [
    "Anchor",
    "Report",
    "SessionReport",
    "check_anchors",
    "compare_files",
    "read_anchors",
    "take_anchor",
    "verify_file",
]
