"""Canonical formats on disk, class orders, sealed tasks, augmentation."""
