"""ProtoCore: continual learning of new classes with a memory counted in bytes."""

__version__ = "0.1.0"
