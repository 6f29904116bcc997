"""A learner's predictor as one module from bytes to scores, as an ONNX graph, and that graph in whole numbers."""

from __future__ import annotations

import copy
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from protocore.backbones import Network
from protocore.data.augment import to_float
from protocore.device.container import sealed
from protocore.errors import UserError, shown
from protocore.methods.parts.means import OfFeatures

if TYPE_CHECKING:
    from torch.export import ExportedProgram

OPSET = 20  # what onnxruntime reads since 1.17, of January 2024
BETWEEN = "between"  # what a frozen network gives to the learner behind it: no output of the file


class Graph(nn.Module):
    """uint8 pictures (N, C, H, W) to scores of the classes seen, and features where the predictor goes by these."""

    def __init__(self, predictor: nn.Module, columns: list[int], front: nn.Module | None = None) -> None:
        super().__init__()
        self.predictor, self.columns, self.front = predictor, columns, front
        self.public = ["scores", "features"] if isinstance(predictor, OfFeatures | Network) else ["scores"]
        self.outputs = self.public if front is None else [*self.public, BETWEEN]

    def forward(self, pictures: Tensor) -> list[Tensor]:
        x = to_float(pictures)
        if self.front is not None:
            x = self.front(x)
        found, predictor = [x], self.predictor
        if isinstance(predictor, OfFeatures | Network):
            found.insert(0, predictor.features(x))
            scores = predictor.logits(found[0])
        else:
            scores = predictor(x)
        return [scores[:, self.columns], *found][: len(self.outputs)]


def frozen_graph(predictor: nn.Module, columns: list[int], front: nn.Module | None = None) -> Graph:
    """A copy of its own on the processor, in evaluation mode: what the learner does later changes nothing of it."""
    graph = copy.deepcopy(Graph(predictor, columns, front))
    graph.to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return graph.eval().requires_grad_(False)


@torch.no_grad()
def program_of(graph: Graph, pictures: Tensor) -> ExportedProgram:
    """torch's own export, for any number of pictures."""
    try:
        return torch.export.export(graph, (pictures,), dynamic_shapes=({0: torch.export.Dim("pictures")},))
    except Exception as error:  # a module of the user's can do whatever torch.export does not follow
        raise UserError(f"this network cannot be exported ({shown(f'{type(error).__name__}: {error}', 600)}); a module "
                        "of one's own must be one that torch.export takes") from error


def program_bytes(program: ExportedProgram) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def onnx_of(program: ExportedProgram, outputs: list[str]) -> Any:
    """An ONNX model, without the notes on where in our code each node comes from."""
    with _quiet():
        made = torch.onnx.export(program, dynamo=True, opset_version=OPSET, input_names=["pictures"],
                                 output_names=outputs, optimize=True, verbose=False)
    assert made is not None
    model = made.model_proto
    for part in (*model.graph.node, *model.graph.initializer, *model.graph.value_info, *model.graph.input,
                 *model.graph.output, *model.functions, model.graph):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return model


def graph_bytes(model: Any, metadata: Mapping[str, str]) -> bytes:
    """The file: the model with this metadata, sealed."""
    import onnx

    told = onnx.ModelProto()
    told.CopyFrom(model)
    for output in [output for output in told.graph.output if output.name == BETWEEN]:
        told.graph.output.remove(output)
    onnx.helper.set_model_props(told, dict(metadata))
    return sealed(told.SerializeToString(deterministic=True))


def in_whole_numbers(model: Any, pictures: np.ndarray) -> Any:
    """The network with weights and activations in eight bits; these pictures tell their ranges."""
    from onnxruntime import quantization as q

    class Pictures(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(pictures[at : at + 1] for at in range(len(pictures)))

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
            row = next(self.rows, None)
            return None if row is None else {"pictures": row}

    import onnx

    with _quiet(), tempfile.TemporaryDirectory() as folder:
        plain, ready, done = (Path(folder) / f"{name}.onnx" for name in ("plain", "ready", "done"))
        onnx.save(model, plain)
        q.quant_pre_process(plain, ready, skip_symbolic_shape=True)
        kept = behind_network(onnx.load(ready))
        q.quantize_static(
            ready, done, Pictures(), quant_format=q.QuantFormat.QDQ, per_channel=True,
            op_types_to_quantize=["Conv", "Gemm", "MatMul"], nodes_to_exclude=kept,
            # Seven bits a weight: in eight, processors without VNNI add up beyond what their registers hold.
            reduce_range=True, activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8)
        return onnx.load(done)


def behind_network(model: Any) -> list[str]:
    """Nodes that work on features: distances to means lose more by rounding than their speed is worth."""
    outputs = {output.name for output in model.graph.output}
    after, names = {BETWEEN} if BETWEEN in outputs else {"features"}, []
    for node in model.graph.node:  # in the order in which they are computed
        if after.intersection(node.input):
            after.update(node.output)
            names.append(node.name)
    return names


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch's exporter and onnxruntime's quantiser say of themselves is of no use to who exports a learner."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
