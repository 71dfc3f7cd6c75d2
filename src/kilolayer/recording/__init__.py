"""The contract between measuring and judging.

A recording is three things on disk, readable without kilolayer: rows ``step, site, role, stat, value`` in
Parquet parts, a site table (``sites.json``) and a table of facts (``facts.json``). Whatever measures writes
one; whatever judges or draws reads one; neither knows the other.
"""

from kilolayer.recording.recording import Recording
from kilolayer.recording.schema import FORMAT, ROLES
from kilolayer.recording.site import Site
from kilolayer.recording.writer import RecordingWriter

__all__ = ["FORMAT", "ROLES", "Recording", "RecordingWriter", "Site"]
