"""The ``kilolayer`` command."""
