"""Thin adapters: the monitor in other people's trainers, its numbers in other people's loggers.

Each module needs its own third-party package, so none is imported here: ``kilolayer.integrations.transformers``,
``kilolayer.integrations.lightning``, ``kilolayer.integrations.loggers``.
"""
