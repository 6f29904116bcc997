"""An exported learner on a device: numpy and onnxruntime, no torch. Names for pictures, and new classes."""

from protocore.device.classifier import Classifier, load

__all__ = ["Classifier", "load"]
