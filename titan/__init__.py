"""titan: one TOML file, any layout, the same run.

Importing the package costs nothing: no torch, no configuration. See ARCHITECTURE.md for the map.
"""

__version__ = "0.1.0"
