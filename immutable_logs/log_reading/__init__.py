"""Read the logs of a run's ranks: as one stream, as they grow, and for what went wrong first."""

from __future__ import annotations
