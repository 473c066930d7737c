# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = [
#     "iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0",
#     "onnx==1.23.2", "numpy==2.4.6",
# ]
#
# [tool.onnxopt]
# runtime = ["iree-base-compiler", "iree-base-runtime"]
# unsupported = [
#     'failed to legalize operation .torch\.\S+. that was explicitly marked illegal',
#     'Unknown ONNX tensor element type',
# ]
# ///
"""IREE's compiler for CPUs, and its runtime.

IREE's integer types have no sign: unsigned outputs are returned as signed integers with the same
bits. By default, the compiler replaces double by float32, even in the types of inputs. A buffer of
doubles would then be read as float32, so a flag disables the replacement.
"""

import onnx
from iree import compiler, runtime
from iree.compiler.extras import onnx_importer
from iree.compiler.ir import Context

_FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false"]
_UNSIGNED = {"uint8", "uint16", "uint32", "uint64", "bool"}


def _array(result, declared):
    """Return an output as the signed or unsigned type that the model declares."""
    array = result.to_host()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
    same_bits = dtype.name in _UNSIGNED and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if same_bits and array.dtype.kind == "i" else array


class Backend:
    """Compiles each model."""

    def run(self, model, inputs):
        """Return the outputs of a model, in the graph's order."""
        model.graph.name = "main"
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        information = onnx_importer.ModelInfo(inferred)
        module = information.create_module(context=Context()).operation
        onnx_importer.NodeImporter.define_function(information.main_graph, module).import_all()
        module.verify()
        binary = compiler.compile_str(
            str(module), input_type="onnx", target_backends=["llvm-cpu"],
            extra_args=_FLAGS,
        )  # fmt: skip
        config = runtime.Config("local-sync")
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary))
        results = context.modules.module["main"](*inputs.values())
        results = results if isinstance(results, (list, tuple)) else [results]
        return list(map(_array, results, model.graph.output))
