"""The program of an ONNX file: what an evaluation computes, from inputs as loaded to averaged outputs."""

import io
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from launcher.data.batch import START, Batch
from launcher.errors import UserError, one_line
from launcher.tasks import Task

# note: the limit of protobuf for one message
_MOST_BYTES = 2**31 - 1


class ExportGraph(nn.Module):
    """Prepares inputs as loaded (normalizes images), and averages the network's outputs over views and mirror images.

    Outputs are logits, or numbers in the unit of the training data, float64.
    """

    def __init__(self, network: nn.Module, task: Task):
        super().__init__()
        self.network, self._task = network.eval(), task

    def forward(self, inputs: Tensor) -> Tensor:
        passes = self._task.passes(self._task.prepare(Batch(inputs, inputs, np.empty(0), START)).inputs)
        # note: one pass of all, since a graph would repeat the network
        outputs = self.network(torch.cat(passes) if len(passes) > 1 else passes[0])
        return self._task.in_unit(self._task.average([*outputs.unflatten(0, (len(passes), -1))]))


def input_name(task: Task) -> str:
    """Return the name of the program's input."""
    return "tokens" if task.values.axes == 1 else "images"


def output_name(task: Task) -> str:
    """Return the name of the program's output."""
    return "numbers" if task.values.scores(task.config.loss) == "numbers" else "logits"


def write_onnx(network: nn.Module, task: Task, path: Path) -> None:
    """Write the program of a network, float32 on the CPU, for any number of images or length of texts.

    Its metadata are removed: those of torch's exporter contain paths of this machine.

    Raises UserError if the weights exceed the size of an ONNX file, or the network has an operation that ONNX lacks.
    """
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    if size > _MOST_BYTES:
        raise UserError(f"ONNX files hold 2.1 GB, but the weights have {size / 1e9:.1f} GB; export without --onnx")
    from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass

    # note: torch would fix a batch size of one
    inputs, _ = task.blank(2, task.values.loaded_evaluation_size(task.config), torch.device("cpu"))
    lengths = {1: torch.export.Dim.AUTO} if task.values.axes == 1 else {}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                ExportGraph(network, task),
                (inputs.contiguous(),),
                dynamo=True,
                input_names=[input_name(task)],
                output_names=[output_name(task)],
                dynamic_shapes=({0: torch.export.Dim("batch"), **lengths},),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = one_line(str(error.__cause__ or error)).partition(". ")[0]
            raise UserError(f"torch cannot write this network as ONNX: {reason}; export without --onnx") from None
    assert program is not None
    ClearMetadataAndDocStringPass()(program.model)
    path.write_bytes(program.model_proto.SerializeToString())
